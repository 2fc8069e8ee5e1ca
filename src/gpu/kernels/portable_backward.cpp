// See portable_backward.h.
#include "gpu/kernels/portable_backward.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/function.h"
#include "gpu/workspace.h"

namespace gdpa::gpu {
namespace {

// As in portable_forward.cpp.
constexpr PortableTile backward_16_bit[] = {
    {64, 128, 8, 1, 2, 1, 164, 132}, {64, 128, 4, 2, 2, 1, 196, 128}, {32, 128, 4, 2, 2, 1, 192, 164},
    {64, 64, 4, 2, 2, 1, 192, 164},  {64, 64, 4, 2, 1, 1, 192, 164},  {32, 64, 4, 2, 2, 1, 192, 164},
    {32, 64, 4, 2, 1, 1, 192, 164},  {32, 32, 2, 2, 1, 1, 192, 164},  {16, 32, 2, 2, 1, 1, 192, 164},
};
constexpr PortableTile backward_32_bit[] = {
    {32, 64, 4, 2, 2, 1, 164, 164}, {32, 64, 4, 2, 1, 1, 164, 164}, {32, 32, 2, 2, 2, 1, 128, 128},
    {32, 32, 2, 2, 1, 1, 128, 128}, {32, 32, 2, 4, 1, 1, 88, 88},   {16, 32, 2, 2, 1, 1, 100, 100},
    {16, 16, 1, 4, 1, 1, 120, 120},
};

/// The column warps split the queries of the scores, and P goes through shared memory (backward_tiles.cuh).
bool splits_scores(const PortableBackward& kernel) {
  constexpr int row_group = 16;  // rows and columns of one tensor-core product
  return kernel.column_warps > 1 && kernel.tile_queries % (row_group * kernel.column_warps) == 0;
}

}  // namespace

TileNeeds PortableBackward::needs() const {
  const int64_t rows = portable_operand_row_bytes(*this, head_dim) + portable_operand_row_bytes(*this, head_dim_v);
  const int64_t scores = tile_keys * portable_row_bytes(*this, tile_queries);
  const bool stores_p = splits_scores(*this);
  const int64_t bytes = (tile_keys + stages * tile_queries) * rows + (stores_p || reduce_grad_query ? scores : 0) +
                        (stores_p ? scores : 0);
  const int columns = portable_columns_of_warp(*this, head_dim);
  const int queries = tile_queries / (stores_p ? column_warps : 1);
  const int of_scores = registers_of_warp(tile_keys / warps, 2 * queries);
  const int of_grad_query = reduce_grad_query ? registers_of_warp(tile_queries, columns / warps) : 0;
  const int of_gradients = registers_of_warp(tile_keys / warps, columns + portable_columns_of_warp(*this, head_dim_v));
  // out_scale of the entry multiplies P and dS.
  const int of_several_entries = keys_shared || has_batch_map || owns_rows ? 4 : 0;
  return {bytes, of_gradients + std::max(of_scores, of_grad_query) + of_several_entries};
}

std::string PortableBackward::description() const {
  return describe(names, *this,
                  fmt::format("{}{}{}{}", exact_or_fast(accuracy), has_batch_map ? " mapped" : "",
                              wants_grad_key ? "" : " without dK", wants_grad_value ? "" : " without dV"),
                  warps * column_warps);
}

SourceParts PortableBackward::source(const Expressions& expressions) const {
  ConfigText config;
  write_attention(*this, expressions, config);
  config.type("Activation", "::ActivationWithDerivative");
  write_inputs(&expressions.function, config);
  if (owns_rows) {
    write_portable(*this, "RowsLayout", "common/rows_layout.cuh", "key_warps", config);
  } else {
    write_portable(*this, has_batch_map ? "MappedLayout" : "PackedLayout",
                   has_batch_map ? "common/mapped_layout.cuh" : "common/packed_layout.cuh", "key_warps", config);
  }
  config.flag("reduce_grad_query", reduce_grad_query);
  config.flag("computes_grad_key", wants_grad_key);
  config.flag("computes_grad_value", wants_grad_value);
  config.flag("keys_shared", keys_shared);
  const activation::ForwardForm form{.has_fp16_p = element == GpuElement::float16};
  return portable_source(
      *this,
      condition_of(*this, expressions) + activation::cuda_source(expressions.function, accuracy, form, tensor_types),
      config);
}

PortableBackward portable_backward_for(const Call& call, bool reduce_grad_query, bool owns_rows) {
  PortableBackward kernel{{attention_kernel_for(call)}, function_form_for(call)};
  kernel.reduce_grad_query = reduce_grad_query;
  kernel.owns_rows = owns_rows;
  kernel.keys_shared = !owns_rows && has_shared_keys(call.problem);
  kernel.has_batch_map = !owns_rows && call.problem.has_batch_map;
  kernel.wants_grad_key = call.problem.wanted.key;
  kernel.wants_grad_value = call.problem.wanted.value;
  const std::span<const PortableTile> tiles =
      bytes_of(kernel.element) == 2 ? std::span<const PortableTile>(backward_16_bit) : backward_32_bit;
  choose_portable_tile(
      tiles, call.gpu, needs_many_registers(call), [&] { return kernel.needs(); }, kernel);
  return kernel;
}

}  // namespace gdpa::gpu
