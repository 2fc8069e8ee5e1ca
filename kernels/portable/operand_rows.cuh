// The rows of one sequence and head of an operand: copied into a tile in shared memory, stored from a tile, and stored
// from the accumulators of a gradient.
#pragma once

#include "common/epilogues.cuh"
#include "common/tile.cuh"
#include "common/work.cuh"

namespace gdpa::portable {

/// The threads of the CTA copy the rows from `row` on into a tile of `tile_rows` rows, as load_rows().
template <class Config, int threads, int tile_rows, int columns, class Tile>
__device__ void load_operand(Tile tile, const Operand& operand, const Rows& rows, int64_t b, int row, int head) {
  using Storage = typename Config::Element::Storage;
  load_rows<threads, Config::aligned, tile_rows, columns>(
      tile, static_cast<const Storage*>(operand.data) + Config::Layout::offset_of(operand, rows, b, row, head),
      operand.row_stride, rows.count - row);
}

/// The same for the tiles of Q and dO of a tile of queries.
template <class Config, int threads, class QueryTile, class GradOutputTile>
__device__ void load_queries(QueryTile query_tile, GradOutputTile grad_output_tile, const Params& params,
                             const Rows& queries, int64_t b, int query, int head) {
  load_operand<Config, threads, Config::tile_queries, Config::head_dim>(query_tile, params.query, queries, b, query,
                                                                        head);
  load_operand<Config, threads, Config::tile_queries, Config::head_dim_v>(
      grad_output_tile, params.grad_output, Config::Layout::output_rows(params, queries, b), b, query, head);
}

/// The reverse of load_operand.
template <class Config, int threads, int tile_rows, int columns, class Tile>
__device__ void store_operand(Tile tile, const Operand& operand, const Rows& rows, int64_t b, int row, int head) {
  using Storage = typename Config::Element::Storage;
  store_rows<threads, Config::aligned, tile_rows, columns>(
      tile, static_cast<Storage*>(operand.data) + Config::Layout::offset_of(operand, rows, b, row, head),
      operand.row_stride, rows.count - row);
}

/// Stores the gradient of the tile of `owned` rows that the CTA owns, times `factor`: rounded, in `output`; or with
/// `is_partial` in fp32, as the partial result of this split of the batch. A warp has the rows of the tile from
/// `warp_row` on and the columns from `column` on.
template <class Config, int threads, int tile_rows, int columns, bool is_partial, class Tile, class Gradient>
__device__ void store_gradient(const Gradient& accumulator, float factor, Tile staging, const Operand& output,
                               const Operand& partial, const Work& work, const Rows& owned, int warp_row, int column) {
  const int first_row = work.tile * tile_rows;
  if constexpr (is_partial) {
    auto* to = static_cast<float*>(partial.data) +
               Config::Layout::offset_of(partial, owned, work.entry, first_row + warp_row, work.head) + column;
    visit_accumulator(accumulator, factor, [&](int r, int c, const float(&values)[4]) {
      if (first_row + warp_row + r >= owned.count || column + c >= padded_columns(columns)) return;
      *reinterpret_cast<float4*>(to + r * partial.row_stride + c) = {values[0], values[1], values[2], values[3]};
    });
  } else {
    stage_accumulator(accumulator, staging.from(warp_row, column), [factor](int) { return ScaledRow{factor}; });
    __syncthreads();
    store_operand<Config, threads, tile_rows, columns>(staging, output, owned, work.entry, first_row, work.head);
  }
}

}  // namespace gdpa::portable
