// Config::Layout for a call with output_offsets: O and dO have rows of their own, which are not the rows of Q. The
// layout of the operands is `Operands`.
#pragma once

#include "common/packed_layout.cuh"

namespace gdpa {

template <class Operands>
struct WithOutputOffsets : Operands {
  /// portable/locate_sequences.cuh has clamped the first rows.
  GDPA_HOST_DEVICE static Rows output_rows(const Params& params, const Rows& queries, int64_t b) {
    return {params.outputs.begins[b], queries.count};
  }
};

}  // namespace gdpa
