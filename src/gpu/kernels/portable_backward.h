// The host file of kernels/portable/backward.cuh: dK and dV on every supported GPU, and sums of dQ.
#pragma once

#include "gpu/kernels/portable.h"
#include "gpu/workspace.h"

namespace gdpa::gpu {

struct PortableBackward : PortableKernel, FunctionForm {
  bool reduce_grad_query = false;  ///< add to dQ atomically
  bool keys_shared = false;        ///< the batch shares the keys
  bool has_batch_map = false;      ///< several batch entries may have the keys of one owner
  bool owns_rows = false;          ///< the owners are rows of the operand of keys (RowsLayout)
  bool wants_grad_key = true;
  bool wants_grad_value = true;

  static constexpr KernelNames names = {"portable", "backward", "backward", "BackwardArguments", ""};
  static constexpr PortableTile tiles[] = {
      {2, 64, 128, 8, 1, 2, 1, 164, 132}, {2, 64, 128, 4, 2, 2, 1, 196, 128}, {2, 32, 128, 4, 2, 2, 1, 192, 164},
      {2, 64, 64, 4, 2, 2, 1, 192, 164},  {2, 64, 64, 4, 2, 1, 1, 192, 164},  {2, 32, 64, 4, 2, 2, 1, 192, 164},
      {2, 32, 64, 4, 2, 1, 1, 192, 164},  {2, 32, 32, 2, 2, 1, 1, 192, 164},  {2, 16, 32, 2, 2, 1, 1, 192, 164},
      {4, 32, 64, 4, 2, 2, 1, 164, 164},  {4, 32, 64, 4, 2, 1, 1, 164, 164},  {4, 32, 32, 2, 2, 2, 1, 128, 128},
      {4, 32, 32, 2, 2, 1, 1, 128, 128},  {4, 32, 32, 2, 4, 1, 1, 88, 88},    {4, 16, 32, 2, 2, 1, 1, 100, 100},
      {4, 16, 16, 1, 4, 1, 1, 120, 120},
  };
  auto operator<=>(const PortableBackward&) const = default;

  /// The column warps split the queries of the scores, and P goes through shared memory (backward_scores.cuh).
  bool splits_scores() const {
    constexpr int row_group = 16;  // rows and columns of one tensor-core product
    return column_warps > 1 && tile_queries % (row_group * column_warps) == 0;
  }

  TileNeeds needs() const {
    const int64_t scores = tile_keys * portable_row_bytes(*this, tile_queries);
    const bool stores_p = splits_scores();
    const int64_t bytes = (tile_keys + stages * tile_queries) * bytes_of_both_rows(*this) +
                          (stores_p || reduce_grad_query ? scores : 0) + (stores_p ? scores : 0);
    const int columns = portable_columns_of_warp(*this, head_dim);
    const int queries = tile_queries / (stores_p ? column_warps : 1);
    const int of_scores = registers_of_warp(tile_keys / warps, 2 * queries);
    const int of_grad_query = reduce_grad_query ? registers_of_warp(tile_queries, columns / warps) : 0;
    const int of_gradients =
        registers_of_warp(tile_keys / warps, columns + portable_columns_of_warp(*this, head_dim_v));
    // out_scale of the entry multiplies P and dS.
    const int of_several_entries = keys_shared || has_batch_map || owns_rows ? 4 : 0;
    return {bytes, of_gradients + std::max(of_scores, of_grad_query) + of_several_entries};
  }

  std::string properties() const {
    return describe(*this,
                    fmt::format("{}{}{}{}", exact_or_fast(accuracy), has_batch_map ? " mapped" : "",
                                wants_grad_key ? "" : " without dK", wants_grad_value ? "" : " without dV"),
                    warps * column_warps);
  }

  SourceParts source(const Expressions& expressions) const {
    ConfigText config;
    write_attention(*this, expressions, config);
    config.type("Activation", "::ActivationWithDerivative");
    write_inputs(expressions.function, config);
    constexpr LayoutName rows_layout = {"RowsLayout", "common/packed_layout.cuh"},
                         mapped_layout = {"MappedLayout", "common/packed_layout.cuh"};
    write_portable(*this, owns_rows ? rows_layout : has_batch_map ? mapped_layout : packed_layout, "key_warps", config);
    config.flag("reduce_grad_query", reduce_grad_query);
    config.flag("computes_grad_key", wants_grad_key);
    config.flag("computes_grad_value", wants_grad_value);
    config.flag("keys_shared", keys_shared);
    return {.functions = function_source(*this, *this, expressions), .config = config.text(), .ctas = ctas};
  }
};

/// The kernel of a call, with its tile. With `owns_rows`, it does not compute dQ.
inline PortableBackward portable_backward_for(const Call& call, bool reduce_grad_query, bool owns_rows) {
  PortableBackward kernel{{attention_kernel_for(call)}, function_form_for(call), reduce_grad_query};
  kernel.owns_rows = owns_rows;
  kernel.keys_shared = !owns_rows && has_shared_keys(call.problem);
  kernel.has_batch_map = !owns_rows && call.problem.has_batch_map;
  kernel.wants_grad_key = call.problem.wanted.key;
  kernel.wants_grad_value = call.problem.wanted.value;
  choose_portable_tile(call.gpu, needs_many_registers(call), kernel);
  return kernel;
}

}  // namespace gdpa::gpu
