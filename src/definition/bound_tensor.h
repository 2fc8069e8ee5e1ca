// BoundTensor: a tensor of the call that an expression reads, or the gradient of such a tensor. BoundTensors: all
// tensors of one expression. The header includes no standard library, because NVRTC compiles it too.
#pragma once

#include "gdpa/integers.h"

namespace gdpa {

/// The types of numbers that a function may read from a tensor.
enum class NumberType : int32_t { float32, float64, bfloat16, float16, int32, int64 };

/// A tensor of up to four axes. Strides count elements and may have any value.
struct BoundTensor {
  static constexpr int most_axes = 4;

  void* data = nullptr;  ///< an input is only read
  NumberType type = NumberType::float32;
  int32_t rank = 0;
  int64_t sizes[most_axes] = {};
  int64_t strides[most_axes] = {};

  /// The offset in elements of the number of a query head, in a tensor that is read without an index.
  GDPA_HOST_DEVICE int64_t offset_of_head(int64_t head) const {
    return rank == 1 && sizes[0] > 1 ? head * strides[0] : 0;
  }

  /// The nearest index of an axis that exists.
  GDPA_HOST_DEVICE int64_t clamped(int axis, int64_t index) const {
    const int64_t last = sizes[axis] - 1;
    return index < 0 ? 0 : index > last ? last : index;
  }
};

/// The most tensors of a call that a function or a mask reads.
constexpr int most_parameters = 8;

/// The most elements of a lookup (expression/lookup.h) that a kernel copies into shared memory.
constexpr int most_lookup_elements = 256;

/// The shared memory of a warp for the lookups of tiles of `columns` keys (kernels/common/staged_lookups.cuh).
GDPA_HOST_DEVICE constexpr int lookup_bytes(int lookups, int columns) {
  constexpr int bytes_of_rows = 16 * (8 + 4) + 16;
  return lookups * most_lookup_elements * 4 + columns * 4 + bytes_of_rows;
}

/// The tensors that a function or a mask reads, in the order of activation::Function::parameters().
struct BoundTensors {
  BoundTensor tensors[most_parameters];

  template <class Number>
  GDPA_HOST_DEVICE BoundTensor& operator[](Number tensor) {
    return tensors[tensor];
  }
  template <class Number>
  GDPA_HOST_DEVICE const BoundTensor& operator[](Number tensor) const {
    return tensors[tensor];
  }
};

}  // namespace gdpa
