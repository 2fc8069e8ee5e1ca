// The host file of kernels/portable/forward.cuh: O on every supported GPU.
#pragma once

#include "gpu/kernels/portable.h"

namespace gdpa::gpu {

struct PortableForward : PortableKernel, FunctionForm {
  bool has_pages = false;  ///< keys and values are in pages

  static constexpr KernelNames names = {"portable", "forward", "forward", "ForwardArguments", ""};
  static constexpr PortableTile tiles[] = {
      {2, 128, 64, 4, 1, 2, 2, 160, 160}, {2, 128, 32, 4, 1, 2, 2, 192, 160}, {2, 128, 64, 8, 1, 2, 1, 192, 160},
      {2, 128, 32, 8, 1, 2, 1, 192, 160}, {2, 64, 32, 4, 1, 2, 1, 192, 160},  {2, 64, 16, 4, 1, 2, 1, 192, 160},
      {4, 128, 32, 8, 1, 2, 1, 112, 72},  {4, 128, 16, 8, 1, 2, 1, 104, 80},  {4, 64, 32, 4, 2, 2, 1, 112, 64},
      {4, 64, 16, 4, 2, 2, 1, 112, 80},   {4, 64, 16, 4, 2, 1, 1, 112, 80},
  };
  auto operator<=>(const PortableForward&) const = default;

  TileNeeds needs() const {
    const int64_t row =
        std::max(portable_operand_row_bytes(*this, head_dim), portable_operand_row_bytes(*this, head_dim_v));
    return {tile_queries * row + stages * tile_keys * bytes_of_both_rows(*this),
            registers_of_warp(tile_queries / warps, portable_columns_of_warp(*this, head_dim_v) + tile_keys)};
  }

  std::string properties() const {
    return describe(*this, fmt::format("{}{}", exact_or_fast(accuracy), has_pages ? " paged" : ""),
                    warps * column_warps);
  }

  SourceParts source(const Expressions& expressions) const {
    ConfigText config;
    write_attention(*this, expressions, config);
    config.type("Activation", "::Activation");
    write_inputs(expressions.function, config);
    write_portable(*this, has_pages ? paged_layout : packed_layout, "warps", config);
    return {.functions = function_source(*this, *this, expressions), .config = config.text(), .ctas = ctas};
  }
};

/// The kernel of a call, with its tile.
inline PortableForward portable_forward_for(const Call& call) {
  PortableForward kernel{{attention_kernel_for(call)}, function_form_for(call), call.problem.has_pages()};
  choose_portable_tile(call.gpu, needs_many_registers(call), kernel);
  return kernel;
}

}  // namespace gdpa::gpu
