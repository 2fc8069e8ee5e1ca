// Config::Layout for operands that are dense, or jagged with cumulative lengths: the sequences of a jagged operand are
// consecutive rows. A layout answers where the rows of a sequence are. docs/kernels/add-a-layout.md lists its members.
#pragma once

#include "common/sequence.cuh"

namespace gdpa {

/// Cumulative lengths come from the device and may be wrong. They are clamped, so that rows are always within the
/// `packed_rows` rows of the operand.
struct PackedLayout {
  GDPA_HOST_DEVICE static bool is_jagged(const Sequences& side) { return side.cumulative != nullptr; }

  /// The first row of entry b, 0 unless the side is jagged. first_row(batch) is the end of the last sequence. Rising
  /// with b: the tile order (work.cuh) finds an entry by a search of these rows.
  GDPA_HOST_DEVICE static int64_t first_row(const Sequences& side, int64_t b, int64_t packed_rows) {
    return clamp(side.begin(b), 0, packed_rows);
  }

  /// The rows of entry b. A sequence has at most most_gpu_rows rows.
  GDPA_HOST_DEVICE static Rows rows_of(const Sequences& side, int64_t b, int64_t packed_rows) {
    if (!is_jagged(side)) return {0, static_cast<int>(side.length)};
    const int64_t begin = first_row(side, b, packed_rows);
    const int64_t end = clamp(side.begin(b + 1), begin, packed_rows);
    return {begin, static_cast<int>(clamp(end - begin, 0, most_gpu_rows))};
  }

  /// The offset in elements of row `row` of entry b, head h, from the operand's data.
  GDPA_HOST_DEVICE static int64_t offset_of(const Operand& operand, const Rows& rows, int64_t b, int64_t row,
                                            int64_t h) {
    return operand.offset(Sequences{}, b, rows.begin + row, h);
  }
};

}  // namespace gdpa
