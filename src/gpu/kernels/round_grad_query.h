// The host file of kernels/hopper/grad_query_accumulators.cuh, which rounds the accumulators of dQ on Hopper.
#pragma once

#include "gpu/kernels/hopper_backward_common.h"

namespace gdpa::gpu {

struct RoundGradQuery : HopperBackwardKernel {
  static constexpr KernelNames names = {"hopper", "round_grad_query", "grad_query_accumulators", "BackwardArguments"};
  static constexpr bool reads_function = false;
  auto operator<=>(const RoundGradQuery&) const = default;

  std::string properties() const { return describe_backward(*this, ""); }

  SourceParts source(const Expressions& expressions) const {
    ConfigText config;
    write_backward(*this, hopper::Pass::only, expressions, config);
    return hopper_source(condition_of(*this, expressions), config);
  }
};

}  // namespace gdpa::gpu
