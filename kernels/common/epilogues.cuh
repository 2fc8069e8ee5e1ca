// Config::Epilogue: the last step before a result is rounded and stored. The epilogues multiply by out_scale, which has
// one number for each batch entry or for each query, or add a tensor.
#pragma once

#include "common/arguments.cuh"
#include "common/sequence.cuh"

namespace gdpa {

/// The last step of a row of sums that all have one factor.
struct ScaledRow {
  float factor;

  /// Returns an element of the result from its accumulator.
  GDPA_HOST_DEVICE float operator()(float accumulator, int /*column*/) const { return accumulator * factor; }
};

/// O = out_scale * P V. Only forward calls of(). Backward reads scale_of() and the addend alone, so src/api applies a
/// factor of a row to dO.
struct ScaleEpilogue {
  /// Whether sums begin with the rows of an addend, divided by their factor, in place of 0.
  static constexpr bool has_addend = false;

  float factor;

  /// The factor of sums, so that an addend can be divided by it.
  GDPA_HOST_DEVICE static float invertible(float factor) { return factor; }

  /// The factor of an entry, by which backward multiplies dO V^T; 0 for the rows without a sequence.
  GDPA_HOST_DEVICE static float scale_of(const CommonArguments& arguments, const SequencePair& pair) {
    if (pair.b < 0 || pair.b >= arguments.params.batch) return 0.0f;
    return static_cast<float>(arguments.params.out_scale.of(pair.b, pair.length_q, pair.length_k));
  }

  /// The epilogue of one batch entry and head. `factor` is scale_of() times the factors that f and the scores left out.
  GDPA_HOST_DEVICE static ScaleEpilogue of(const CommonArguments& /*arguments*/, const SequencePair& /*pair*/,
                                           float factor) {
    return {factor};
  }

  /// The last step of the row of O of a query, which may be beyond the sequence.
  GDPA_HOST_DEVICE ScaledRow row(int /*query*/) const { return {factor}; }
};

/// O_i = r_i (P V)_i: out_scale has one number r for each row of the query operand, in fp32. scale_of() is the factor
/// of an entry without the numbers of its rows.
struct RowScaleEpilogue : ScaleEpilogue {
  const float* first;  ///< the number of the sequence's first query
  int64_t stride;      ///< in elements
  int queries;         ///< of the sequence; 0 for the rows without a sequence

  GDPA_HOST_DEVICE static RowScaleEpilogue of(const CommonArguments& arguments, const SequencePair& pair,
                                              float factor) {
    const OutputScale& scale = arguments.params.out_scale;
    const Sequences& queries = arguments.params.queries;
    if (pair.b < 0 || pair.b >= arguments.params.batch) return {{0.0f}, nullptr, 0, 0};
    // Offsets come from the device and may be wrong. A clamped sequence is within the operand.
    const int64_t token =
        queries.is_jagged() ? clamp(queries.begins[pair.b], 0, arguments.packed_rows_q) : pair.b * queries.token_stride;
    const auto* const first = static_cast<const float*>(scale.numbers) + token * scale.row_stride;
    return {{factor}, first, scale.row_stride, pair.length_q};
  }

  /// The last step of the row of O of a query, which may be beyond the sequence.
  GDPA_HOST_DEVICE ScaledRow row(int query) const { return {query < queries ? factor * first[query * stride] : 0.0f}; }
};

/// O = out_scale * P V + Q and dQ = scale * dS K + dO: Q, or dO, is the addend.
struct AddendEpilogue : ScaleEpilogue {
  static constexpr bool has_addend = true;

  /// A factor below 2^-60 becomes 2^-60: the result of attention then disappears in the rounding of the addend.
  GDPA_HOST_DEVICE static float invertible(float factor) {
    constexpr float least = 0x1p-60f;
    return factor < least && factor > -least ? least : factor;
  }
};

}  // namespace gdpa
