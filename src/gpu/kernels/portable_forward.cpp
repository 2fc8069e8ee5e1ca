// See portable_forward.h.
#include "gpu/kernels/portable_forward.h"
#include "codegen/function.h"

#include <fmt/format.h>

#include <algorithm>

namespace gdpa::gpu {
namespace {

// A kernel gets the first tile that fits. Each list begins with the tiles that were measured on a GPU with 227 KB of
// shared memory. The tiles after them are for 163 KB (A100), for 99 KB (Ada, and the small GPUs of Ampere and
// Blackwell), and for wider rows. docs/kernels/portable.md has the tables.
constexpr PortableTile forward_16_bit[] = {
    {128, 64, 4, 1, 2, 2, 160, 160}, {128, 32, 4, 1, 2, 2, 192, 160}, {128, 64, 8, 1, 2, 1, 192, 160},
    {128, 32, 8, 1, 2, 1, 192, 160}, {64, 32, 4, 1, 2, 1, 192, 160},  {64, 16, 4, 1, 2, 1, 192, 160},
};
constexpr PortableTile forward_32_bit[] = {
    {128, 32, 8, 1, 2, 1, 112, 72}, {128, 16, 8, 1, 2, 1, 104, 80}, {64, 32, 4, 2, 2, 1, 112, 64},
    {64, 16, 4, 2, 2, 1, 112, 80},  {64, 16, 4, 2, 1, 1, 112, 80},
};

}  // namespace

TileNeeds PortableForward::needs() const {
  const int64_t row =
      std::max(portable_operand_row_bytes(*this, head_dim), portable_operand_row_bytes(*this, head_dim_v));
  return {tile_queries * row + bytes_of_key_stages(*this),
          registers_of_warp(tile_queries / warps, portable_columns_of_warp(*this, head_dim_v) + tile_keys)};
}

std::string PortableForward::description() const {
  return describe(names, *this, fmt::format("{}{}", exact_or_fast(accuracy), has_pages ? " paged" : ""),
                  warps * column_warps);
}

SourceParts PortableForward::source(const Expressions& expressions) const {
  ConfigText config;
  write_attention(*this, expressions, config);
  config.type("Activation", "::Activation");
  write_inputs(&expressions.function, config);
  write_portable(*this, has_pages ? "PagedLayout" : "PackedLayout",
                 has_pages ? "common/paged_layout.cuh" : "common/packed_layout.cuh", "warps", config);
  const activation::ForwardForm form{.scales_scores = scales_scores, .has_fp16_p = element == GpuElement::float16};
  return portable_source(
      *this,
      condition_of(*this, expressions) + activation::cuda_source(expressions.function, accuracy, form, tensor_types),
      config);
}

PortableForward portable_forward_for(const Call& call) {
  PortableForward kernel{{attention_kernel_for(call)}, function_form_for(call)};
  kernel.has_pages = call.problem.has_pages();
  const std::span<const PortableTile> tiles =
      bytes_of(kernel.element) == 2 ? std::span<const PortableTile>(forward_16_bit) : forward_32_bit;
  choose_portable_tile(
      tiles, call.gpu, needs_many_registers(call), [&] { return kernel.needs(); }, kernel);
  return kernel;
}

}  // namespace gdpa::gpu
