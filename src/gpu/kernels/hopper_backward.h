// The host file of kernels/hopper/backward.cuh: dQ, dK and dV on Hopper, with head dims up to 128.
#pragma once

#include "gpu/kernels/hopper_backward_common.h"
#include "gpu/parameter_sums.h"

namespace gdpa::gpu {

/// The gradients of tensors that backward computes with dQ, dK and dV (kernels/hopper/backward_gradients.cuh).
enum class FusedGradients : std::uint8_t { none, of_numbers, of_scores };

struct HopperBackward : HopperBackwardKernel, FunctionForm {
  bool takes_head_factors = false;      ///< dV and dS have factors of the head (activation::ForwardForm)
  bool takes_constant_factors = false;  ///< dV and dS have constant factors (activation::ForwardForm)
  bool prefetches_bias = false;         ///< the elements of a dense bias are loaded into the L1 cache first
  FusedGradients gradients = FusedGradients::none;
  unsigned wanted_parameters = 0;            ///< of these gradients, bit n: tensor n
  ParameterSum sum = ParameterSum::float64;  ///< of these gradients
  bool own_elements = false;                 ///< each score may have an element of its own in a sum
  hopper::Pass pass = hopper::Pass::only;

  static constexpr KernelNames names = {"hopper", "backward", "backward", "BackwardArguments"};
  auto operator<=>(const HopperBackward&) const = default;
  std::string properties() const;
  SourceParts source(const Expressions& expressions) const;
};

/// The type that evaluates f and f' in a pass of backward.
std::string_view activation_of(hopper::Pass pass);

}  // namespace gdpa::gpu
