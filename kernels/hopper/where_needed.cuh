// The second pass of backward (BackwardPass in arguments.cuh): how the first finds that it is needed, and the bounds of
// a function where a score needs them.
#pragma once

#include "hopper/arguments.cuh"
#include "hopper/warpgroup.cuh"

namespace gdpa::hopper {

__device__ __forceinline__ bool is_finite(float number) { return fabsf(number) <= 3.4028235e38f; }

/// In the first pass, by a warpgroup that has dK or dV of 64 keys, or both, in its registers; `rows` of them exist. A
/// weight or dS that is not finite makes a whole row of dV or dK so, and one column tells.
template <class Config, class... Sums>
__device__ __forceinline__ void look_for_infinity(const BackwardArguments& arguments, int rows, const Sums&... sums) {
  if (Config::pass != BackwardPass::first) return;
  const unsigned thread = fresh_thread_index();
  const int row = static_cast<int>(thread / 32 * 16 + thread % 32 / 4);
  const bool is_low_finite = (is_finite(sums[0]) && ...), is_high_finite = (is_finite(sums[2]) && ...);
  if ((row < rows && !is_low_finite) || (row + 8 < rows && !is_high_finite)) *arguments.found = 1;
}

/// The function of the first pass, and where that is not finite the one with bounds, in the same factors. So a call
/// with a score that is not finite gives the others the bits that they have without it.
template <class Unguarded, class Guarded>
struct GuardedWhereNeeded {
  static constexpr float score_factor = Unguarded::score_factor;
  static constexpr float value_factor = Unguarded::value_factor;

  static __device__ __forceinline__ void value_and_derivative(float x, float& f, float& derivative) {
    Unguarded::value_and_derivative(x, f, derivative);
    if (is_finite(f) && is_finite(derivative)) return;
    Guarded::value_and_derivative(x * (Guarded::score_factor / score_factor), f, derivative);
    f *= Guarded::value_factor / value_factor;
  }
};

}  // namespace gdpa::hopper
