// The host file of kernels/portable/round_parameters.cuh, which rounds the sums of the gradients of tensors.
#pragma once

#include <algorithm>

#include "definition/divide.h"
#include "gpu/launch.h"
#include "gpu/parameter_sums.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {

struct RoundParameters {
  ParameterSum sum = ParameterSum::float64;

  using Arguments = portable::RoundParametersArguments;
  static constexpr KernelNames names = {"portable", "round_parameters", "round_parameters", "RoundParametersArguments"};
  static constexpr bool reads_function = false, reads_mask = false;
  auto operator<=>(const RoundParameters&) const = default;

  SourceParts source(const Expressions& /*expressions*/) const {
    ConfigText config;
    config.type("Sum", in_source(sum));
    return {.config = config.text()};
  }
};

/// The launch for sums of so many elements of all wanted gradients.
inline Launch round_parameters(const Call& call, ParameterSum sum, int64_t elements) {
  constexpr int64_t threads = 256, ctas_per_multiprocessor = 16;
  const int64_t most_ctas = ctas_per_multiprocessor * call.gpu.multiprocessors;
  return Launch::of(RoundParameters{sum}, std::min(divide_up(elements, threads), most_ctas),
                    [](const BoundCall& bound) {
                      portable::RoundParametersArguments arguments{};
                      arguments.copies = bound.common.params.parameter_sums;
                      for (std::size_t i = 0; i < most_parameters; ++i) {
                        if ((bound.problem.wanted.parameters >> i & 1U) == 0) continue;
                        arguments.gradients[i] = bound.params.grad_parameters[i];
                        arguments.sums[i] = bound.common.params.grad_parameters[i].data;
                      }
                      return arguments;
                    });
}

}  // namespace gdpa::gpu
