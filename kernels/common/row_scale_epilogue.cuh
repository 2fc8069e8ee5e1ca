// Config::Epilogue for O_i = r_i (P V)_i: out_scale has one number r for each row of the query operand, in fp32.
#pragma once

#include "common/scale_epilogue.cuh"

namespace gdpa {

struct RowScaleEpilogue {
  static constexpr bool has_addend = false;

  float factor;
  const float* first;  ///< the number of the sequence's first query
  int64_t stride;      ///< in elements
  int queries;         ///< of the sequence; 0 for the rows without a sequence

  GDPA_HOST_DEVICE static float invertible(float factor) { return factor; }

  /// The factor of an entry: without the numbers of its rows.
  GDPA_HOST_DEVICE static float scale_of(const CommonArguments& arguments, const SequencePair& pair) {
    return ScaleEpilogue::scale_of(arguments, pair);
  }

  GDPA_HOST_DEVICE static RowScaleEpilogue of(const CommonArguments& arguments, const SequencePair& pair,
                                              float factor) {
    const OutputScale& scale = arguments.params.out_scale;
    const Sequences& queries = arguments.params.queries;
    if (pair.b < 0 || pair.b >= arguments.params.batch) return {0.0f, nullptr, 0, 0};
    // Offsets come from the device and may be wrong. A clamped sequence is within the operand.
    const int64_t token =
        queries.is_jagged() ? clamp(queries.begins[pair.b], 0, arguments.packed_rows_q) : pair.b * queries.token_stride;
    return {factor, static_cast<const float*>(scale.numbers) + token * scale.row_stride, scale.row_stride,
            pair.length_q};
  }

  /// The last step of the row of O of a query, which may be beyond the sequence.
  GDPA_HOST_DEVICE ScaledRow row(int query) const { return {query < queries ? factor * first[query * stride] : 0.0f}; }
};

}  // namespace gdpa
