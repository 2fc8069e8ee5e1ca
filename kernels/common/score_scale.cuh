// The factor from Q K^T to the argument of the function in backward.
#pragma once

namespace gdpa {

/// Function: scales_scores, score_factor. A function that reads numbers of the head includes `scale` in products of
/// these numbers. Its argument is Q K^T.
template <class Function>
__device__ __forceinline__ float score_scale(float scale) {
  return Function::scales_scores ? scale * Function::score_factor : 1.0f;
}

}  // namespace gdpa
