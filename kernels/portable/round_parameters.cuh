// Adds up the copies of the sums of the gradients of tensors (common/parameter_sum.cuh) and rounds them into the
// gradients, which may have any strides.
//
// Launch: grid any number of CTAs.
#pragma once

#include "common/parameter_sum.cuh"
#include "common/types.cuh"
#include "portable/arguments.cuh"

namespace gdpa::portable {

template <class Config>
using round_parameters_cta = CtaShape<256>;

/// Stores a number in the type of the tensor.
__device__ inline void store_number(const BoundTensor& tensor, int64_t offset, float number) {
  if (tensor.type == NumberType::bfloat16) {
    static_cast<Half16*>(tensor.data)[offset] = BFloat16::rounded(number);
  } else if (tensor.type == NumberType::float16) {
    static_cast<Half16*>(tensor.data)[offset] = Float16::rounded(number);
  } else {
    static_cast<float*>(tensor.data)[offset] = number;
  }
}

/// Config: using Sum.
template <class Config>
__device__ void round_parameters(const RoundParametersArguments& arguments) {
  for (int tensor = 0; tensor < most_parameters; ++tensor) {
    const BoundTensor& gradient = arguments.gradients[tensor];
    if (gradient.data == nullptr) continue;
    int64_t count = 1;
    for (int axis = 0; axis < gradient.rank; ++axis) count *= gradient.sizes[axis];
    const int64_t step = static_cast<int64_t>(gridDim.x) * round_parameters_cta<Config>::threads;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * round_parameters_cta<Config>::threads + threadIdx.x; i < count;
         i += step) {
      int64_t offset = 0;
      int64_t rest = i;
      for (int axis = gradient.rank - 1; axis >= 0; --axis) {
        offset += rest % gradient.sizes[axis] * gradient.strides[axis];
        rest /= gradient.sizes[axis];
      }
      double total = 0;
      for (int copy = 0; copy < arguments.copies.copies; ++copy) {
        total += copy_of_sums<typename Config::Sum>(arguments.sums[tensor], arguments.copies, copy)[i].total();
      }
      store_number(gradient, offset, static_cast<float>(total));
    }
  }
}

}  // namespace gdpa::portable
