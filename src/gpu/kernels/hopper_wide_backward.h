// The host file of kernels/hopper/wide_backward.cuh: dQ, dK and dV on Hopper, with a head dim above 128.
#pragma once

#include <fmt/format.h>

#include "codegen/function.h"
#include "gpu/kernels/hopper_backward.h"

namespace gdpa::gpu {

struct HopperWideBackward : HopperBackwardKernel, FunctionForm {
  bool takes_constant_factors = false;  ///< dV and dS have constant factors (activation::ForwardForm)
  hopper::Pass pass = hopper::Pass::only;

  using Arguments = hopper::BackwardArguments;
  static constexpr KernelNames names = {"hopper", "wide_backward", "wide_backward", "BackwardArguments"};
  static constexpr bool reads_function = true, reads_mask = true;
  auto operator<=>(const HopperWideBackward&) const = default;

  std::string description() const {
    return describe_backward(names, *this, fmt::format("{}{}", exact_or_fast(accuracy), in_description(pass)));
  }

  SourceParts source(const Expressions& expressions) const {
    ConfigText config;
    config.type("Activation", activation_of(pass));
    write_inputs(&expressions.function, config);
    write_backward(*this, pass, expressions, config);
    const activation::ForwardForm form{.scales_scores = scales_scores,
                                       .has_fp16_p = element == GpuElement::float16,
                                       .takes_constant_factors = takes_constant_factors};
    return hopper_source(
        condition_of(*this, expressions) + activation::cuda_source(expressions.function, accuracy, form, tensor_types),
        config);
  }
};

}  // namespace gdpa::gpu
