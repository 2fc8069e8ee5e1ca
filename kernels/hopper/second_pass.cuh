// The second pass of backward (Pass in arguments.cuh): how the first pass finds that it is needed, and the
// guarded function for scores that need it.
#pragma once

#include "hopper/arguments.cuh"
#include "pipeline/warpgroup.cuh"

namespace gdpa::hopper {

__device__ __forceinline__ bool is_finite(float number) { return fabsf(number) <= 3.4028235e38f; }

/// Requests the second pass if dK or dV is not finite. By a consumer with the accumulators of dK or dV, or both, of 64
/// keys, of which `rows` exist. An element of P or dS that is not finite makes a whole row of dV or dK not finite, so
/// that one column suffices.
template <class Config, class... Sums>
__device__ __forceinline__ void flag_non_finite(const BackwardArguments& arguments, int rows,
                                                const Sums&... accumulators) {
  if (Config::pass != Pass::first) return;
  const unsigned thread = thread_in_warpgroup();
  const int row = static_cast<int>(thread / 32 * 16 + thread % 32 / 4);
  const bool is_low_finite = (is_finite(accumulators[0]) && ...), is_high_finite = (is_finite(accumulators[2]) && ...);
  if ((row < rows && !is_low_finite) || (row + 8 < rows && !is_high_finite)) *arguments.non_finite = 1;
}

/// The function of the first pass, and, where its value is not finite, the guarded function with the same factors. A
/// score that is not finite therefore does not change the bits of other results.
template <class Unguarded, class Guarded>
struct GuardedWhereNeeded {
  static constexpr bool scales_scores = Unguarded::scales_scores;
  static_assert(Guarded::scales_scores == scales_scores, "both have the same argument");
  static constexpr float score_factor = Unguarded::score_factor;
  static constexpr bool derivative_lacks_one = Unguarded::derivative_lacks_one;

  Unguarded unguarded;
  Guarded guarded;

  static __device__ __forceinline__ GuardedWhereNeeded of(const Params& params, int head) {
    return {Unguarded::of(params, head), Guarded::of(params, head)};
  }

  __device__ __forceinline__ float value_factor() const { return unguarded.value_factor(); }
  __device__ __forceinline__ float derivative_factor() const { return unguarded.derivative_factor(); }

  template <class Body>
  __device__ __forceinline__ void visit(Body body) const {
    body(*this);
  }

  template <class Values>
  __device__ __forceinline__ void value_and_derivative(float x, const Values& in, float& f, float& derivative) const {
    unguarded.value_and_derivative(x, in, f, derivative);
    if (is_finite(f) && is_finite(derivative)) return;
    // The ratios of factors are constants. A member would hide them from the compiler.
    guarded.value_and_derivative(x * (Guarded::score_factor / score_factor), in, f, derivative);
    f *= guarded.value_factor() / unguarded.value_factor();
    if (Guarded::derivative_lacks_one) derivative += 1.0f;
    derivative *= guarded.derivative_factor() / unguarded.derivative_factor();
    if (derivative_lacks_one) derivative -= 1.0f;
  }
};

}  // namespace gdpa::hopper
