// Config::Epilogue for O = out_scale * P V. An epilogue is the last step before a result is rounded and stored.
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

/// Only forward calls of(). Backward knows an epilogue by scale_of() alone, so src/api applies a factor of a row to dO.
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

}  // namespace gdpa
