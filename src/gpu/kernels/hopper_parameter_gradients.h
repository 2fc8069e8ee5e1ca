// The host file of kernels/hopper/parameter_gradients.cuh: the gradients of the tensors that f reads, on Hopper.
#pragma once

#include "gpu/kernels/hopper.h"
#include "gpu/parameter_sums.h"

namespace gdpa::gpu {

struct HopperParameterGradients : AttentionKernel, ParameterGradientsForm {
  int query_stages = 0;  ///< of Q and dO
  int sum_elements = 0;  ///< elements for which each consumer thread has a sum of its own

  using Arguments = hopper::ParameterGradientsArguments;
  static constexpr KernelNames names = {"hopper", "parameter_gradients", "parameter_gradients",
                                        "ParameterGradientsArguments"};
  auto operator<=>(const HopperParameterGradients&) const = default;

  std::string properties() const {
    return describe(*this, fmt::format("{}{}", exact_or_fast(accuracy), delayed()), warps);
  }

  SourceParts source(const Expressions& expressions) const {
    ConfigText config;
    write_attention(*this, expressions, config);
    write_parameter_gradients(*this, config);
    write_layout("gdpa::pipeline::", mapped_packed_layout, has_output_offsets, config);
    config.number("query_stages", query_stages);
    config.number("sum_elements", sum_elements);
    const int threads_with_sums = sum_elements > 0 ? warps * 32 : 0;
    return hopper_source(
        condition_of(*this, expressions) + parameter_gradients_source(*this, expressions.function, threads_with_sums),
        config);
  }
};

inline Launch launch(const HopperParameterGradients& kernel, int64_t ctas, const pipeline::TileDistribution& tiles) {
  return Launch::of(kernel, ctas, [tile_keys = kernel.tile_keys, tiles](const BoundCall& call) {
    return hopper::ParameterGradientsArguments(query_major_arguments(call, tile_keys, tiles, &Params::grad_output));
  });
}

}  // namespace gdpa::gpu
