// Backward: the gradients of tensors that the function reads, in kernels that compute them with dQ, dK and dV. S and dP
// are in registers there, so that no kernel computes them again (parameter_gradients.cuh). A consumer has the terms of
// 64 queries and of its keys in the accumulators of S^T.
#pragma once

#include "common/parameter_sum.cuh"
#include "hopper/backward_storage.cuh"

namespace gdpa::hopper {

/// Config::Gradients of a kernel that computes no gradients of tensors.
struct NoGradients {
  static constexpr bool are_of_numbers = false;
};

/// Config::Gradients of a function that reads only numbers of its head. `Activation` computes the terms dP df/dnumber
/// together with f and dS, because they share most of their steps. Each thread adds up the terms of a head in registers.
template <class Activation, class Sum>
struct NumberGradients {
  static constexpr bool are_of_numbers = true;
  static constexpr int numbers = Activation::numbers;
  /// Query tiles whose terms a thread adds up in fp32. A sum of 4096 terms of one size has a relative error of at most
  /// 2.4e-4.
  static constexpr int tiles_of_a_sum = 4096 / (backward_tile_queries / 2);

  float totals[numbers];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (float& total : totals) total = 0.0f;
  }

  __device__ __forceinline__ void add(const float (&terms)[numbers]) {
#pragma unroll
    for (int k = 0; k < numbers; ++k) totals[k] += terms[k];
  }

  /// Adds the totals of a head to the sums, and clears them. By the warp.
  __device__ __forceinline__ void end(const Params& params, const Activation& function, int head, float out_scale) {
    function.multiply_by_factors(totals);
#pragma unroll
    for (int k = 0; k < numbers; ++k) {
      const BoundTensor& gradient = Activation::gradient_of(params, k);
      const float total = sum_of_warp(totals[k]) * out_scale;
      if (lane_index() == 0) static_cast<Sum*>(gradient.data)[gradient.offset_of_head(head)].add(total);
    }
    clear();
  }
};

}  // namespace gdpa::hopper
