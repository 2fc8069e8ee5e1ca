// Config::Epilogue for O = out_scale * P V + Q. In backward, dQ = scale * dS K + dO.
#pragma once

#include "common/scale_epilogue.cuh"

namespace gdpa {

/// A kernel adds Q, or dO, to the result, or it begins its accumulators with Q divided by the factor of the result.
struct AddQueryEpilogue : ScaleEpilogue {
  static constexpr bool adds_query = true;

  /// The factor of a result whose accumulators begin with Q divided by the factor. A factor below 2^-60 becomes 2^-60:
  /// the result of attention then disappears in the rounding of Q.
  GDPA_HOST_DEVICE static float invertible(float factor) {
    constexpr float least = 0x1p-60f;
    return factor < least && factor > -least ? least : factor;
  }
};

}  // namespace gdpa
