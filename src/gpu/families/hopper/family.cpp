// The Hopper kernels: WGMMA, TMA and warp specialisation, for compute capability 9.0.
#include <fmt/format.h>

#include <string>

#include "gpu/families/family.h"
#include "gpu/families/hopper/plans.h"
#include "gpu/kernels/hopper.h"

namespace gdpa::gpu {
namespace {

/// The conditions of all kernels.
std::string why_not_any(const Call& call) {
  const Gpu& gpu = call.gpu;
  if (gpu.capability != 90) {
    return fmt::format("it needs compute capability 9.0, not {}.{}", gpu.capability / 10, gpu.capability % 10);
  }
  if (gpu.shared_bytes < hopper_shared_kilobytes * 1024) {
    return fmt::format("it needs {} KB of shared memory, not {}", hopper_shared_kilobytes, gpu.shared_bytes / 1024);
  }
  const DType dtype = call.problem.dtype;
  if (dtype != DType::bfloat16 && dtype != DType::float16) return "it takes bfloat16 and float16";
  if (!call.aligned) return "some row does not begin at a multiple of 16 bytes";
  if (!call.has_tensor_maps) {
    return call.problem.has_pages()
               ? "TMA cannot address an operand of these strides; two pages have to be a whole number of rows apart"
               : "TMA cannot address an operand of these strides";
  }
  return {};
}

std::string why_not(const Call& call) {
  const std::string why_not = why_not_any(call);
  return why_not.empty() && call.problem.direction == Direction::backward ? why_not_hopper_backward(call) : why_not;
}

void add_hopper_attention(const Call& call, GpuPlan& plan) {
  (call.problem.direction == Direction::forward ? add_hopper_forward : add_hopper_backward)(call, plan);
}

}  // namespace

const Family hopper_family = {"Hopper", why_not, add_hopper_attention, why_not_any, add_hopper_parameter_gradients};

}  // namespace gdpa::gpu
