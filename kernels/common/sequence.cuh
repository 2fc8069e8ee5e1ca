// One batch entry in device code: its rows on each side, and the valid range of keys or queries that the mask leaves.
// The structs that every backend reads compute both; this file adds the clamps and the 32-bit types that kernels need.
#pragma once

#include "definition/params.h"

namespace gdpa {

/// Rows of one sequence. `begin` is the first row in a packed operand, and 0 in other operands.
struct Rows {
  int64_t begin;
  int count;
};

GDPA_HOST_DEVICE inline int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

/// The rows of batch entry b. Cumulative lengths come from the device and may be wrong. They are clamped, so that the
/// rows are always within the `packed_rows` rows of the operand. A sequence has at most most_gpu_rows rows.
GDPA_HOST_DEVICE inline Rows rows_of(const Sequences& side, int64_t b, int64_t packed_rows) {
  if (side.cumulative == nullptr) return {0, static_cast<int>(side.length)};
  const int64_t begin = clamp(side.begin(b), 0, packed_rows);
  const int64_t end = clamp(side.begin(b + 1), begin, packed_rows);
  return {begin, static_cast<int>(clamp(end - begin, 0, most_gpu_rows))};
}

/// The offset in elements of row `row` of batch entry b, head h, from the operand's data.
GDPA_HOST_DEVICE inline int64_t element_offset(const Operand& operand, const Rows& rows, int64_t b, int64_t row,
                                               int64_t h) {
  return operand.offset(Sequences{}, b, rows.begin + row, h);
}

/// A half-open range of keys or queries. 32-bit numbers make the test of each score cheap.
struct ValidRange {
  int begin;
  int count;
  GDPA_HOST_DEVICE bool holds(int index) const {
    return static_cast<unsigned>(index - begin) < static_cast<unsigned>(count);
  }
};

/// The mask of one batch entry. A mask of another kind needs the same five functions.
struct MaskOfSequence {
  const Mask& mask;
  int length_q;
  int length_k;

  static GDPA_HOST_DEVICE ValidRange narrow(const Range& range) {
    return {static_cast<int>(range.begin), static_cast<int>(range.size())};
  }

  /// The keys that at least one query of a tile attends to; the queries that attend to at least one key of a tile.
  GDPA_HOST_DEVICE ValidRange keys_of(int query, int count) const {
    return narrow(mask.keys({query, end(query, count, length_q)}, length_q, length_k));
  }
  GDPA_HOST_DEVICE ValidRange queries_of(int key, int count) const {
    return narrow(mask.queries({key, end(key, count, length_k)}, length_q, length_k));
  }

  /// Whether every score of the tile counts: none is masked, and none is beyond the sequences.
  GDPA_HOST_DEVICE bool is_full(int query, int queries, int key, int keys) const {
    return query + queries <= length_q && key + keys <= length_k &&
           mask.is_full({query, query + queries}, {key, key + keys}, length_q, length_k);
  }

  /// The keys of one query, and the queries of one key; empty beyond the sequences.
  GDPA_HOST_DEVICE ValidRange row(int query) const { return query < length_q ? keys_of(query, 1) : ValidRange{0, 0}; }
  GDPA_HOST_DEVICE ValidRange column(int key) const { return key < length_k ? queries_of(key, 1) : ValidRange{0, 0}; }

 private:
  static GDPA_HOST_DEVICE int64_t end(int first, int count, int length) {
    return first + count < length ? first + count : length;
  }
};

}  // namespace gdpa
