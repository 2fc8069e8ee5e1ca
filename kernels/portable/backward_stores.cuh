// Portable backward: the stores of dQ, by atomic additions, and of dK and dV, from accumulators in registers.
#pragma once

#include "common/scale_epilogue.cuh"
#include "common/tile.cuh"
#include "portable/backward_tiles.cuh"
#include "portable/query_tile_iterator.cuh"

namespace gdpa::portable {

/// dQ += factor * dS K for one tile of queries: atomic additions to the fp32 accumulator in global memory.
template <class Config>
__device__ void reduce_grad_query(const CommonArguments& arguments, const Work& work, const QueryTileCoord& at,
                                  typename BackwardTiles<Config>::Scores ds,
                                  typename BackwardTiles<Config>::QueryOrKey key, float factor) {
  using Tiles = BackwardTiles<Config>;
  const int warp = warp_index();
  const int row = warp / Tiles::dq_column_warps * Tiles::dq_row_tiles * 16;
  const int column = warp % Tiles::dq_column_warps * Tiles::dq_columns;
  if (warp >= Tiles::dq_row_warps * Tiles::dq_column_warps || column >= Tiles::columns) return;
  Accumulator<Tiles::dq_row_tiles, Tiles::dq_columns> accumulator;
  multiply_columns<Config::tile_keys>(accumulator, ds.from(0, row), key.from(0, column));
  const Rows queries = queries_of_entry<Config>(arguments, work, at.b);
  const Operand& target = arguments.grad_query_accumulator;
  auto* to = static_cast<float*>(target.data) +
             Config::Layout::offset_of(target, queries, at.b, at.query + row, at.head) + column;
  const int rows_left = queries.count - at.query - row;
  visit_accumulator(accumulator, factor, [&](int r, int c, const float(&values)[4]) {
    if (r < rows_left && column + c < padded_columns(Config::head_dim))
      reduce_add(to + r * target.row_stride + c, values);
  });
}

/// Stores dK or dV of the CTA's tile of keys: rounded, in the gradient; or in fp32, as the partial result of this split
/// of the batch.
template <class Config, int valid_columns, class Tile, class Gradient>
__device__ void store_gradient(const Gradient& accumulator, float factor, Tile staging, const Operand& output,
                               const Operand& partial, const Work& work, int warp_key, int column) {
  const Rows keys = work.keys;
  using Tiles = BackwardTiles<Config>;
  const int first_key = work.tile * Config::tile_keys;
  if constexpr (Config::keys_shared) {
    auto* to = static_cast<float*>(partial.data) +
               Config::Layout::offset_of(partial, keys, work.entry, first_key + warp_key, work.head) + column;
    visit_accumulator(accumulator, factor, [&](int r, int c, const float(&values)[4]) {
      if (first_key + warp_key + r >= keys.count || column + c >= padded_columns(valid_columns)) return;
      *reinterpret_cast<float4*>(to + r * partial.row_stride + c) = {values[0], values[1], values[2], values[3]};
    });
  } else {
    using Storage = typename Config::Element::Storage;
    stage_accumulator(accumulator, staging.from(warp_key, column), [factor](int) { return ScaledRow{factor}; });
    __syncthreads();
    store_rows<Tiles::threads, Config::aligned, Config::tile_keys, valid_columns>(
        staging,
        static_cast<Storage*>(output.data) + Config::Layout::offset_of(output, keys, work.entry, first_key, work.head),
        output.row_stride, keys.count - first_key);
  }
}

}  // namespace gdpa::portable
