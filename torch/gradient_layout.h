// The gradients of the output that the operator copies before it calls gdpa::backward. Autograd passes arbitrary
// layouts: expanded scalars, transposed views, and slices with any offset.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gdpa/tensor.h"

namespace gdpa {

/// Returns whether backward needs a contiguous copy of this gradient. gdpa requires a last dimension of stride 1. On a
/// GPU the fast kernels also require positive strides and rows that begin at multiples of 16 bytes. Without the copy,
/// an expanded gradient, such as the gradient of mean(), would select the portable kernels.
inline bool needs_copy(const TensorView& grad_output) {
  constexpr int64_t alignment = 16;
  const auto last = static_cast<std::size_t>(grad_output.rank - 1);
  if (grad_output.rank == 0) return false;
  if (grad_output.sizes[last] > 1 && grad_output.strides[last] != 1) return true;
  if (grad_output.device.kind == DeviceKind::cpu) return false;
  if (reinterpret_cast<std::uintptr_t>(grad_output.data) % alignment != 0) return true;
  for (std::size_t i = 0; i < last; ++i) {
    const int64_t stride = grad_output.strides[i];
    const bool is_read = grad_output.sizes[i] > 1;
    if (is_read && stride <= 0) return true;
    if (stride * size_in_bytes(grad_output.dtype) % alignment != 0) return true;
  }
  return false;
}

}  // namespace gdpa
