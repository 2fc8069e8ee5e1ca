// The host file of kernels/portable/backward_query.cuh: dQ on every supported GPU, in one order.
#pragma once

#include "gpu/kernels/portable.h"

namespace gdpa::gpu {

struct PortableBackwardQuery : PortableKernel, FunctionForm {
  bool queries_shared = false;  ///< the batch shares the queries

  static constexpr KernelNames names = {"portable", "backward_query", "backward_query", "BackwardQueryArguments", ""};
  static constexpr PortableTile tiles[] = {
      {2, 128, 64, 8, 1, 2, 1, 128, 96}, {2, 128, 32, 8, 1, 2, 1, 160, 128}, {2, 64, 32, 4, 1, 2, 1, 160, 128},
      {2, 64, 32, 4, 2, 2, 1, 160, 128}, {2, 64, 16, 4, 1, 2, 1, 160, 128},  {2, 64, 16, 4, 2, 1, 1, 160, 128},
      {4, 64, 16, 4, 1, 2, 1, 96, 80},   {4, 64, 16, 4, 2, 2, 1, 112, 80},   {4, 64, 16, 4, 2, 1, 1, 112, 80},
      {4, 32, 16, 2, 2, 1, 1, 112, 80},
  };
  auto operator<=>(const PortableBackwardQuery&) const = default;

  TileNeeds needs() const {
    return {(tile_queries + stages * tile_keys) * bytes_of_both_rows(*this),
            registers_of_warp(tile_queries / warps, portable_columns_of_warp(*this, head_dim) + 2 * tile_keys)};
  }

  std::string properties() const { return describe(*this, exact_or_fast(accuracy), warps * column_warps); }

  SourceParts source(const Expressions& expressions) const {
    ConfigText config;
    write_attention(*this, expressions, config);
    config.type("Activation", "::ActivationWithDerivative");
    write_inputs(expressions.function, config);
    write_portable(*this, packed_layout, "warps", config);
    config.flag("queries_shared", queries_shared);
    return {.functions = function_source(*this, *this, expressions), .config = config.text(), .ctas = ctas};
  }
};

/// The kernel of a call, with its tile.
inline PortableBackwardQuery portable_backward_query_for(const Call& call, bool queries_shared) {
  PortableBackwardQuery kernel{{attention_kernel_for(call)}, function_form_for(call), queries_shared};
  choose_portable_tile(call.gpu, needs_many_registers(call), kernel);
  return kernel;
}

}  // namespace gdpa::gpu
