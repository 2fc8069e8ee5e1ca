// Questions of the checks about one view, or about two.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gdpa/tensor.h"

namespace gdpa::api {

inline int64_t size(const TensorView& view, int dimension) { return view.sizes[static_cast<std::size_t>(dimension)]; }

inline int64_t stride(const TensorView& view, int dimension) {
  return view.strides[static_cast<std::size_t>(dimension)];
}

inline bool has_elements(const TensorView& view) {
  return std::all_of(view.sizes.begin(), view.sizes.begin() + view.rank, [](int64_t n) { return n > 0; });
}

inline bool is_same_shape(const TensorView& one, const TensorView& other) {
  return one.rank == other.rank && std::equal(one.sizes.begin(), one.sizes.begin() + one.rank, other.sizes.begin());
}

/// The types of the operands of a call: on a GPU, and everywhere.
inline bool is_operand_of_gpu(DType dtype) {
  return dtype == DType::bfloat16 || dtype == DType::float16 || dtype == DType::float32;
}
inline bool is_floating(DType dtype) { return is_operand_of_gpu(dtype) || dtype == DType::float64; }

/// An empty view is a gradient that is not wanted.
inline bool is_wanted(const MutableTensorView& gradient) { return gradient.data != nullptr || gradient.rank != 0; }

}  // namespace gdpa::api
