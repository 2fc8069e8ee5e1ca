// GpuElement: the type of the operands of the tensor cores.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "gdpa/error.h"
#include "gdpa/tensor.h"

namespace gdpa::gpu {

/// fp32 is computed in tf32, one product or three.
enum class GpuElement : std::uint8_t { bfloat16, float16, float32, tensor_float32 };

/// The struct of kernels/common/types.cuh, without the namespace.
constexpr std::string_view in_source(GpuElement element) {
  switch (element) {
    case GpuElement::bfloat16:
      return "BFloat16";
    case GpuElement::float16:
      return "Float16";
    case GpuElement::float32:
      return "Float32";
    case GpuElement::tensor_float32:
      return "TensorFloat32";
  }
  return "";
}

constexpr int bytes_of(GpuElement element) {
  switch (element) {
    case GpuElement::bfloat16:
    case GpuElement::float16:
      return 2;
    case GpuElement::float32:
    case GpuElement::tensor_float32:
      return 4;
  }
  return 0;
}

/// Throws Error (runtime) for a type that no GPU kernel takes. The checks of a call refuse it before.
inline GpuElement element_of(DType dtype, bool allow_tf32) {
  switch (dtype) {
    case DType::bfloat16:
      return GpuElement::bfloat16;
    case DType::float16:
      return GpuElement::float16;
    case DType::float32:
      return allow_tf32 ? GpuElement::tensor_float32 : GpuElement::float32;
    case DType::float64:
    case DType::int32:
    case DType::int64:
      break;
  }
  throw Error(ErrorKind::runtime, std::string("no GPU kernel has operands of ") + name(dtype));
}

}  // namespace gdpa::gpu
