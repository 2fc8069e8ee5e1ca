// The factor from Q K^T to the argument of the function in backward, and the product of dP and f'.
#pragma once

namespace gdpa {

/// Function: scales_scores, score_factor. A function that takes the scale includes it in its coefficients, or is
/// homogeneous. Its argument is Q K^T.
template <class Function>
__device__ __forceinline__ float score_scale(float scale) {
  return Function::scales_scores ? scale * Function::score_factor : 1.0f;
}

/// dP * f' / derivative_factor, for a result of Function::value_and_derivative.
template <class Function>
__device__ __forceinline__ float times_derivative(float dp, float derivative) {
  return Function::derivative_lacks_one ? dp + dp * derivative : dp * derivative;
}

}  // namespace gdpa
