// Bounds of a function where a score needs them, for the second pass of backward (BackwardPass in arguments.cuh).
#pragma once

namespace gdpa::hopper {

/// The function of the first pass, and where that is not finite the one with bounds, in the same factors. So a call
/// with a score that is not finite gives the others the bits that they have without it.
template <class Unguarded, class Guarded>
struct GuardedWhereNeeded {
  static constexpr float score_factor = Unguarded::score_factor;
  static constexpr float value_factor = Unguarded::value_factor;

  static __device__ __forceinline__ void value_and_derivative(float x, float& f, float& derivative) {
    Unguarded::value_and_derivative(x, f, derivative);
    if (fabsf(f) <= 3.4028235e38f && fabsf(derivative) <= 3.4028235e38f) return;
    Guarded::value_and_derivative(x * (Guarded::score_factor / score_factor), f, derivative);
    f *= Guarded::value_factor / value_factor;
  }
};

}  // namespace gdpa::hopper
