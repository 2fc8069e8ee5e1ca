// Adds the partial results of norm_backward in order, and rounds the gradients of weight and bias.
//
// Launch: grid any number of CTAs, best the numbers of a partial result / 32.
//
// Config: struct with
//     using Weight;                                  the type of weight and bias
//     int columns;
#pragma once

#include "common/types.cuh"
#include "portable/arguments.cuh"

namespace gdpa::portable {

template <class Config>
using norm_reduce_cta = CtaShape<256>;

template <class Config>
__device__ void norm_reduce(const NormReduceArguments& arguments) {
  constexpr int columns_at_once = 32, parts = norm_reduce_cta<Config>::threads / columns_at_once;
  __shared__ float of_parts[parts][columns_at_once];
  const int numbers = arguments.sums * Config::columns;
  const auto part = static_cast<int>(threadIdx.x) / columns_at_once;
  const auto lane = static_cast<int>(threadIdx.x) % columns_at_once;
  for (int first = static_cast<int>(blockIdx.x) * columns_at_once; first < numbers;
       first += static_cast<int>(gridDim.x) * columns_at_once) {
    const int number = first + lane;
    float sum = 0.0f;
    if (number < numbers) {
      for (int64_t partial = part; partial < arguments.partial_count; partial += parts) {
        sum += arguments.partials[partial * numbers + number];
      }
    }
    of_parts[part][lane] = sum;
    __syncthreads();
    if (part == 0 && number < numbers) {
      sum = 0.0f;
      for (int i = 0; i < parts; ++i) sum += of_parts[i][lane];
      using Weight = typename Config::Weight;
      auto* const to = static_cast<typename Weight::Storage*>(arguments.gradients[number / Config::columns]);
      to[number % Config::columns] = Weight::rounded(sum);
    }
    __syncthreads();
  }
}

}  // namespace gdpa::portable
