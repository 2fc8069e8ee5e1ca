// The host file of kernels/hopper/wide_backward.cuh: dQ, dK and dV on Hopper, with a head dim above 128.
#pragma once

#include "gpu/kernels/hopper_backward.h"

namespace gdpa::gpu {

struct HopperWideBackward : HopperBackwardKernel, FunctionForm {
  bool takes_constant_factors = false;  ///< dV and dS have constant factors (activation::ForwardForm)
  hopper::Pass pass = hopper::Pass::only;

  static constexpr KernelNames names = {"hopper", "wide_backward", "wide_backward", "BackwardArguments"};
  auto operator<=>(const HopperWideBackward&) const = default;

  std::string properties() const {
    return describe_backward(*this, fmt::format("{}{}", exact_or_fast(accuracy), in_description(pass)));
  }

  SourceParts source(const Expressions& expressions) const {
    ConfigText config;
    config.type("Activation", activation_of(pass));
    write_inputs(expressions.function, config);
    write_backward(*this, pass, expressions, config);
    const activation::ForwardForm form{.takes_constant_factors = takes_constant_factors};
    return hopper_source(function_source(*this, *this, expressions, form), config);
  }
};

}  // namespace gdpa::gpu
