// The Hopper kernels: WGMMA, TMA and warp specialisation, for compute capability 9.0.
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "gpu/families/family.h"
#include "gpu/families/hopper/plans.h"
#include "gpu/families/registry.h"
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

class HopperFamily final : public Family {
 public:
  std::string_view title() const override { return "Hopper"; }

  std::string why_not(const Call& call) const override {
    const std::string why_not = why_not_any(call);
    const bool is_backward = call.problem.direction == Direction::backward;
    return why_not.empty() && is_backward ? why_not_hopper_backward(call) : why_not;
  }

  void add_attention(const Call& call, GpuPlan& plan) const override {
    if (call.problem.direction == Direction::forward) {
      add_hopper_forward(call, plan);
    } else {
      add_hopper_backward(call, plan);
    }
  }

  std::string why_not_parameter_gradients(const Call& call) const override { return why_not_any(call); }

  void add_parameter_gradients(const Call& call, const ParameterGradientsForm& form, GpuPlan& plan) const override {
    add_hopper_parameter_gradients(call, form, plan);
  }
};

}  // namespace

const Family& hopper_family() {
  static const HopperFamily family;
  return family;
}

}  // namespace gdpa::gpu
