// The main loop of the backward kernels whose CTAs own queries: S and dP of a tile of queries and each of its key
// tiles.
//
//     Q, dO           ->  shared memory, once
//     K, V tile i     ->  stage i % stages, copied `stages - 1` tiles ahead (key_stream.cuh)
//     S = Q K^T, dP = dO V^T  ->  registers
//
// Each warp owns 16 * row_tiles rows of the tile, as in forward.cuh.
//
// Config: struct of key_stream.cuh.
#pragma once

#include "portable/key_stream.cuh"
#include "portable/operand_rows.cuh"
#include "portable/schedule.cuh"

namespace gdpa::portable {

template <class Config>
struct QueryGradientsTiles {
  using Stream = KeyStream<Config>;
  using QueryTile = typename Stream::KeyTile;
  using GradOutputTile = typename Stream::ValueTile;
  static constexpr int threads = Stream::threads;
  static constexpr int grad_output_at = QueryTile::bytes(Config::tile_queries);
  static constexpr int stream_at = grad_output_at + GradOutputTile::bytes(Config::tile_queries);
  static constexpr int shared_bytes = stream_at + Stream::bytes;
  using Scores = Accumulator<Stream::row_tiles, Config::tile_keys>;
};

/// Calls visit(stream, position, scores, dp) for each key tile of `key_tiles`, a list of the keys of batch entry b.
/// Warps whose queries are all beyond the sequence leave the tiles out. The shared memory is free for other data at the
/// end after a barrier.
template <class Config, class Visit>
__device__ void visit_key_tiles(const Params& params, const Work& work, const int64_t& b, const Rows& queries,
                                const Rows& keys, const typename Config::Mask::Tiles& key_tiles, unsigned shared,
                                Visit visit) {
  using Tiles = QueryGradientsTiles<Config>;
  const int first_query = work.tile * Config::tile_queries, warp_row = KeyStream<Config>::warp_row();
  const typename Tiles::QueryTile query_tile{shared};
  const typename Tiles::GradOutputTile grad_output_tile{shared + Tiles::grad_output_at};
  const KeyStream<Config> stream(params, b, work.key_head, keys, shared + Tiles::stream_at, key_tiles);
  load_queries<Config, KeyStream<Config>::threads>(query_tile, grad_output_tile, params, queries, b, first_query,
                                                   work.head);
  stream.start();
  for (int position = 0; position < stream.tiles.size(); ++position) {
    stream.advance(position);
    if (first_query + warp_row >= queries.count) continue;
    typename Tiles::Scores scores, dp;
    multiply_rows(scores, query_tile.from_row(warp_row), stream.key_tile(position));
    multiply_rows(dp, grad_output_tile.from_row(warp_row), stream.value_tile(position));
    visit(stream, position, scores, dp);
  }
  wait_for_copies<0>();
}

}  // namespace gdpa::portable
