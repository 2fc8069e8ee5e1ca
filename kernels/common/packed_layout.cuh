// Config::Layout for operands that are dense, or jagged with a begin and an end of each sequence; with cumulative
// lengths, the end of a sequence is the begin of the next one. A layout answers where the rows of a sequence are.
// docs/kernels/add-a-layout.md lists its members. Three other layouts differ in one member.
#pragma once

#include "common/sequence.cuh"

namespace gdpa {

/// The begins and ends come from the device and may be wrong. They are clamped, so that rows are always within the
/// `packed_rows` rows of the operand.
struct PackedLayout {
  /// Whether several batch entries may have the keys of one owner (MappedLayout).
  static constexpr bool has_batch_map = false;
  /// Whether the owners of keys are rows of the operand (RowsLayout).
  static constexpr bool owns_rows = false;

  GDPA_HOST_DEVICE static bool is_jagged(const Sequences& side) { return side.is_jagged(); }

  /// The rows of the entries before b, 0 unless the side is jagged: with cumulative lengths its first row, otherwise a
  /// sum of lengths. Rising with b: the tile order (work.cuh) finds an entry by a search of these numbers.
  GDPA_HOST_DEVICE static int64_t rows_before(const Sequences& side, int64_t b, int64_t packed_rows) {
    if (!is_jagged(side)) return 0;
    return side.rows_before == nullptr ? clamp(side.begins[b], 0, packed_rows) : side.rows_before[b];
  }

  /// Whether the sequences of a jagged side are anywhere. Otherwise they have all rows from rows_before(0) to
  /// rows_before(batch), and no other rows.
  GDPA_HOST_DEVICE static bool has_gaps(const Sequences& side) { return side.rows_before != nullptr; }

  /// The rows of entry b. A sequence has at most most_gpu_rows rows.
  GDPA_HOST_DEVICE static Rows rows_of(const Sequences& side, int64_t b, int64_t packed_rows) {
    if (!is_jagged(side)) return {0, static_cast<int>(side.length)};
    // Kernels get no batch map of a jagged side; portable/locate_sequences.cuh has applied it.
    const int64_t begin = clamp(side.begins[b], 0, packed_rows);
    const int64_t end = clamp(side.ends[b], begin, packed_rows);
    return {begin, static_cast<int>(clamp(end - begin, 0, most_gpu_rows))};
  }

  /// The rows of O and of dO of entry b, which has the rows `queries` of Q (WithOutputOffsets).
  GDPA_HOST_DEVICE static Rows output_rows(const Params& /*params*/, const Rows& queries, int64_t /*b*/) {
    return queries;
  }

  /// The rows of a tile of keys that are contiguous in memory.
  static constexpr int contiguous_keys(int tile_keys) { return tile_keys; }

  /// The offset in elements of row `row` of the keys of entry b, head h, from the data of K or V.
  GDPA_HOST_DEVICE static int64_t offset_of_key(const Operand& operand, const Sequences& side, const Rows& rows,
                                                int64_t b, int64_t row, int64_t h) {
    return offset_of(operand, rows, side.sequence(b), row, h);
  }

  /// The offset in elements of row `row` of sequence b, head h, from the operand's data.
  GDPA_HOST_DEVICE static int64_t offset_of(const Operand& operand, const Rows& rows, int64_t b, int64_t row,
                                            int64_t h) {
    return operand.offset(Sequences{}, b, rows.begin + row, h);
  }
};

/// The layout of the key-major kernels of a call with a batch map. The owners are the sequences of keys, and the
/// queries of several batch entries attend to the keys of one owner (KeySequences in arguments.cuh). In query-major
/// kernels, each batch entry has one sequence of keys.
struct MappedLayout : PackedLayout {
  static constexpr bool has_batch_map = true;
};

/// The layout of the key-major kernel if sequences of keys overlap: a row of the keys may then belong to several
/// sequences. A CTA owns a tile of rows of the operand in place of a tile of one sequence. It visits the queries of all
/// sequences of its rows, so that the gradient of a row is summed in registers.
struct RowsLayout : PackedLayout {
  static constexpr bool owns_rows = true;
};

/// The layout of a call with output_offsets: O and dO have rows of their own, which are not the rows of Q. The layout
/// of the operands is `Operands`.
template <class Operands>
struct WithOutputOffsets : Operands {
  /// portable/locate_sequences.cuh has clamped the first rows.
  GDPA_HOST_DEVICE static Rows output_rows(const Params& params, const Rows& queries, int64_t b) {
    return {params.outputs.begins[b], queries.count};
  }
};

}  // namespace gdpa
