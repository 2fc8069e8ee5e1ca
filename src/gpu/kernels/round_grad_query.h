// The host file of kernels/hopper/grad_query_accumulators.cuh, which rounds the accumulators of dQ on Hopper.
#pragma once

#include "gpu/kernels/hopper_backward_common.h"

namespace gdpa::gpu {

struct RoundGradQuery : HopperBackwardKernel {
  using Arguments = hopper::BackwardArguments;
  static constexpr KernelNames names = {"hopper", "round_grad_query", "grad_query_accumulators", "BackwardArguments"};
  static constexpr bool reads_function = false, reads_mask = true;
  auto operator<=>(const RoundGradQuery&) const = default;

  std::string description() const { return describe_backward(names, *this, ""); }

  SourceParts source(const Expressions& expressions) const {
    ConfigText config;
    write_backward(*this, hopper::Pass::only, expressions, config);
    return hopper_source(condition_of(*this, expressions), config);
  }
};

}  // namespace gdpa::gpu
