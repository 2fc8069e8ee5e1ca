// What a kernel asks about one batch entry: its rows on each side, and which scores of a tile the mask keeps. The
// answers come from the structs that every backend reads; here they are made safe and cheap for device code.
#pragma once

#include "definition/params.h"

namespace gdpa {

/// Rows of one sequence: `begin` counts rows from the operand's data where it is packed.
struct Rows {
  int64_t begin;
  int count;
};

GDPA_HOST_DEVICE inline int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

/// The rows of batch entry b. Cumulative lengths come from the device and may be wrong: whatever they say, the rows
/// lie within the `packed_rows` of the operand. A sequence has at most most_gpu_rows rows.
GDPA_HOST_DEVICE inline Rows rows_of(const Sequences& side, int64_t b, int64_t packed_rows) {
  if (side.cumulative == nullptr) return {0, static_cast<int>(side.length)};
  const int64_t begin = clamp(side.begin(b), 0, packed_rows);
  const int64_t end = clamp(side.begin(b + 1), begin, packed_rows);
  return {begin, static_cast<int>(clamp(end - begin, 0, most_gpu_rows))};
}

/// Elements from an operand's data to row `row` of the rows of batch entry b, head h.
GDPA_HOST_DEVICE inline int64_t element_offset(const Operand& operand, const Rows& rows, int64_t b, int64_t row,
                                               int64_t h) {
  return operand.offset(Sequences{}, b, rows.begin + row, h);
}

/// A half-open range in 32 bits, which is what per-score tests cost least in.
struct Kept {
  int begin;
  int count;
  GDPA_HOST_DEVICE bool holds(int index) const {
    return static_cast<unsigned>(index - begin) < static_cast<unsigned>(count);
  }
};

/// The mask of one batch entry. A mask of another kind answers the same five questions.
struct MaskOfSequence {
  const Mask& mask;
  int length_q;
  int length_k;

  static GDPA_HOST_DEVICE Kept kept(const Range& range) {
    return {static_cast<int>(range.begin), static_cast<int>(range.size())};
  }

  /// The keys that a tile of queries meets, and the queries that a tile of keys meets: empty, or one range.
  GDPA_HOST_DEVICE Kept keys_of(int query, int count) const {
    return kept(mask.keys({query, end(query, count, length_q)}, length_q, length_k));
  }
  GDPA_HOST_DEVICE Kept queries_of(int key, int count) const {
    return kept(mask.queries({key, end(key, count, length_k)}, length_q, length_k));
  }

  /// Every score of the tile counts: none is masked, none lies beyond the sequences.
  GDPA_HOST_DEVICE bool is_full(int query, int queries, int key, int keys) const {
    return query + queries <= length_q && key + keys <= length_k &&
           mask.is_full({query, query + queries}, {key, key + keys}, length_q, length_k);
  }

  /// Which scores of one row, or of one column, of a tile count; none beyond the sequences.
  GDPA_HOST_DEVICE Kept row(int query) const { return query < length_q ? keys_of(query, 1) : Kept{0, 0}; }
  GDPA_HOST_DEVICE Kept column(int key) const { return key < length_k ? queries_of(key, 1) : Kept{0, 0}; }

 private:
  static GDPA_HOST_DEVICE int64_t end(int first, int count, int length) {
    return first + count < length ? first + count : length;
  }
};

}  // namespace gdpa
