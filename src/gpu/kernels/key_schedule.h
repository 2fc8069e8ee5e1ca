// The host file of kernels/hopper/key_schedule.cuh, which writes the table of key tiles of backward on Hopper.
#pragma once

#include "gpu/kernels/hopper_backward_common.h"
#include "gpu/parameter_sums.h"

namespace gdpa::gpu {

struct KeySchedule : HopperBackwardKernel {
  bool by_heads = false;            ///< the order of the key tiles (kernels/hopper/head_groups.cuh)
  unsigned cleared_parameters = 0;  ///< second pass: bit n: the sums of tensor n, which the first pass has added to
  ParameterSum sum = ParameterSum::float64;  ///< of these
  hopper::Pass pass = hopper::Pass::only;

  static constexpr KernelNames names = {"hopper", "key_schedule", "key_schedule", "BackwardArguments"};
  static constexpr bool reads_function = false;
  auto operator<=>(const KeySchedule&) const = default;

  std::string properties() const { return describe_backward(*this, in_description(pass)); }

  SourceParts source(const Expressions& expressions) const {
    ConfigText config;
    if (cleared_parameters != 0) config.type("Sum", in_source(sum));
    config.number("cleared_parameters", static_cast<int>(cleared_parameters));
    config.flag("by_heads", by_heads);
    write_backward(*this, pass, expressions, config);
    return hopper_source(condition_of(*this, expressions), config);
  }
};

}  // namespace gdpa::gpu
