// The host file of the kernel of kernels/hopper/stored_terms.cuh that writes the elements of a gradient that backward
// does not store if it stores terms.
#pragma once

#include <algorithm>
#include <bit>

#include "gpu/kernels/hopper.h"
#include "gpu/launch.h"
#include "gpu/plan.h"
#include "gpu/tile_lists.h"

namespace gdpa::gpu {

struct CompleteTerms : MaskForm {
  ParameterSum sum = ParameterSum::bfloat16_term;
  int tensor = 0;  ///< whose gradient has the terms
  int tile_queries = 0;
  int tile_keys = 0;

  using Arguments = hopper::CompleteTermsArguments;
  static constexpr KernelNames names = {"hopper", "complete_terms", "stored_terms", "CompleteTermsArguments", ""};
  static constexpr bool reads_function = false, reads_mask = true;
  auto operator<=>(const CompleteTerms&) const = default;

  SourceParts source(const Expressions& expressions) const {
    ConfigText config;
    config.type("Element", element_of_terms(sum));
    config.number("tensor", tensor);
    config.number("tile_queries", tile_queries);
    config.number("tile_keys", tile_keys);
    write_mask(*this, expressions, config);
    config.type_of_header("Layout", "gdpa::pipeline::PackedLayout", "pipeline/packed_layout.cuh");
    return hopper_source(condition_of(*this, expressions), config);
  }
};

/// The launch for the only wanted gradient. `plan` has the tiles of backward.
inline Launch complete_terms(const Call& call, GpuPlan& plan) {
  constexpr int64_t ctas_per_multiprocessor = 8;
  const int tensor = std::countr_zero(call.problem.wanted.parameters);
  const BoundTensor& gradient = call.params.grad_parameters[tensor];
  const int lists = lists_of_tiles(call.problem, plan.tile_queries, plan.tile_keys, true, plan);
  const CompleteTerms kernel{mask_form_for(call.problem, lists), plan.parameters.sum, tensor, plan.tile_queries,
                             plan.tile_keys};
  const int64_t tiles =
      gradient.sizes[0] * gradient.sizes[1] * divide_up(gradient.sizes[2], int64_t{kernel.tile_queries});
  return Launch::of(kernel, std::min(tiles, ctas_per_multiprocessor * call.gpu.multiprocessors),
                    [](const BoundCall& bound) { return bound.common; });
}

}  // namespace gdpa::gpu
