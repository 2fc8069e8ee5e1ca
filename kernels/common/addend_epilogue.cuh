// Config::Epilogue for O = out_scale * P V + Q and dQ = scale * dS K + dO: Q, or dO, is the addend.
#pragma once

#include "common/scale_epilogue.cuh"

namespace gdpa {

struct AddendEpilogue : ScaleEpilogue {
  static constexpr bool has_addend = true;

  /// A factor below 2^-60 becomes 2^-60: the result of attention then disappears in the rounding of the addend.
  GDPA_HOST_DEVICE static float invertible(float factor) {
    constexpr float least = 0x1p-60f;
    return factor < least && factor > -least ? least : factor;
  }
};

}  // namespace gdpa
