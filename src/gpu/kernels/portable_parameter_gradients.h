// The host file of kernels/portable/parameter_gradients.cuh: the gradients of the tensors that f reads, on every
// supported GPU.
#pragma once

#include "gpu/kernels/portable.h"
#include "gpu/parameter_sums.h"

namespace gdpa::gpu {

struct PortableParameterGradients : PortableKernel, ParameterGradientsForm {
  static constexpr KernelNames names = {"portable", "parameter_gradients", "parameter_gradients",
                                        "ParameterGradientsArguments", ""};
  // A warp has all columns of its rows.
  static constexpr PortableTile tiles[] = {
      {2, 128, 64, 8, 1, 2, 1, 128, 96}, {2, 128, 32, 8, 1, 2, 1, 160, 128}, {2, 64, 32, 4, 1, 2, 1, 160, 128},
      {2, 64, 16, 4, 1, 2, 1, 160, 128}, {2, 64, 16, 4, 1, 1, 1, 160, 128},  {4, 64, 16, 4, 1, 2, 1, 96, 80},
      {4, 64, 16, 4, 1, 1, 1, 112, 80},  {4, 32, 16, 2, 1, 1, 1, 112, 80},   {4, 16, 16, 1, 1, 1, 1, 112, 80},
  };
  auto operator<=>(const PortableParameterGradients&) const = default;

  TileNeeds needs() const {
    return {(tile_queries + stages * tile_keys) * bytes_of_both_rows(*this) + warps * warp_terms_bytes(tile_keys),
            registers_of_warp(tile_queries / warps, 2 * tile_keys)};
  }

  std::string properties() const { return describe(*this, exact_or_fast(accuracy), warps * column_warps); }

  SourceParts source(const Expressions& expressions) const {
    ConfigText config;
    write_attention(*this, expressions, config);
    write_parameter_gradients(*this, config);
    write_portable(*this, packed_layout, "warps", config);
    return {.functions = condition_of(*this, expressions) + parameter_gradients_source(*this, expressions.function, 0),
            .config = config.text(),
            .ctas = ctas};
  }
};

/// The kernel of a call, with its tile.
inline PortableParameterGradients portable_parameter_gradients_for(const Call& call,
                                                                   const ParameterGradientsForm& form) {
  PortableParameterGradients kernel{{attention_kernel_for(call)}, form};
  choose_portable_tile(call.gpu, call.facts().has_long_steps(form.accuracy), kernel);
  return kernel;
}

}  // namespace gdpa::gpu
