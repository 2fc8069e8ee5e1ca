// The tiles of the portable backward: how the warps of a CTA split them, and how shared memory is laid out. Also S, P,
// dP and dS of one tile of keys and one tile of queries, in the registers of a warp.
#pragma once

#include "common/tile.cuh"
#include "portable/query_tile_iterator.cuh"
#include "portable/scores.cuh"

namespace gdpa::portable {

/// Config as in backward.cuh.
template <class Config>
struct BackwardTiles {
  using Element = typename Config::Element;
  static constexpr int warp_columns = columns_of_warp(Config::head_dim, Config::column_warps);
  static constexpr int warp_columns_v = columns_of_warp(Config::head_dim_v, Config::column_warps);
  static constexpr int columns = warp_columns * Config::column_warps;
  static constexpr int columns_v = warp_columns_v * Config::column_warps;
  using QueryOrKey = SharedTile<Element, columns>;
  using Value = SharedTile<Element, columns_v>;
  using Scores = SharedTile<Element, Config::tile_queries>;  ///< rows are keys

  static constexpr int warps = Config::key_warps * Config::column_warps;
  static constexpr int threads = warps * 32;
  static constexpr int warp_keys = Config::tile_keys / Config::key_warps;
  static constexpr int row_tiles = warp_keys / 16;
  /// Each column warp computes the scores of its own queries where the tile has 16 queries for each; P and dS then go
  /// through shared memory. Otherwise each column warp computes all scores of its keys.
  static constexpr bool splits_scores = Config::column_warps > 1 &&
                                        Config::tile_queries % (16 * Config::column_warps) == 0;
  static constexpr int warp_queries = Config::tile_queries / (splits_scores ? Config::column_warps : 1);

  // dQ of a tile: the warps split the queries, 32 rows each where possible, and then the columns. The last warps may
  // compute columns beyond the last one from undefined data. These columns are never stored.
  static constexpr int dq_rows = Config::tile_queries % 32 == 0 ? 32 : 16;
  static constexpr int dq_row_warps = Config::tile_queries / dq_rows < warps ? Config::tile_queries / dq_rows : warps;
  static constexpr int dq_row_tiles = Config::tile_queries / dq_row_warps / 16;
  static constexpr int dq_column_warps = warps / dq_row_warps;
  static constexpr int dq_columns = padded_columns((columns + dq_column_warps - 1) / dq_column_warps);

  static constexpr int key_bytes = QueryOrKey::bytes(Config::tile_keys);
  static constexpr int value_bytes = Value::bytes(Config::tile_keys);
  static constexpr int query_bytes = QueryOrKey::bytes(Config::tile_queries);
  static constexpr int stage_bytes = query_bytes + Value::bytes(Config::tile_queries);
  static constexpr int scores_bytes = Scores::bytes(Config::tile_keys);
  /// Whether dS is needed, which dQ and dK read. dS needs dP, and dP needs V.
  static constexpr bool computes_ds = Config::reduce_grad_query || Config::computes_grad_key;
  static constexpr bool stores_ds = splits_scores || Config::reduce_grad_query;
  static constexpr int shared_bytes = key_bytes + value_bytes + Config::stages * stage_bytes +
                                      (stores_ds ? scores_bytes : 0) + (splits_scores ? scores_bytes : 0);
};

template <class Config>
using backward_cta = BackwardTiles<Config>;

/// The operands of one warp: its rows of the tiles in shared memory, its part of the tiles of P and dS, and its columns
/// of dK and dV.
template <class Config>
struct WarpTiles {
  using Tiles = BackwardTiles<Config>;
  typename Tiles::QueryOrKey key;
  typename Tiles::Value value;
  typename Tiles::QueryOrKey query;
  typename Tiles::Value grad_output;
  typename Tiles::Scores p;
  typename Tiles::Scores ds;
  int first_key;
  int first_query;
  int column;
  int column_v;
};

/// Computes P^T and dS^T of this warp's keys and of one tile of queries. Stores them to shared memory where other warps
/// read them; otherwise adds P^T dO to dV and dS^T Q to dK.
template <class Config, bool is_partial, class GradKey, class GradValue>
__device__ void compute_scores(GradKey& grad_key, GradValue& grad_value, const WarpTiles<Config>& tiles,
                               const Params& params, const SequencePair& pair, float scale, float out_scale) {
  using Tiles = BackwardTiles<Config>;
  using Element = typename Config::Element;
  using Scores = Accumulator<Tiles::row_tiles, Tiles::warp_queries>;
  constexpr int depth = product_depth<Element>;
  WarpScores<Config, FragmentRows::keys, is_partial, Tiles::row_tiles, Tiles::warp_queries> of_warp(
      params, pair, tiles.first_key, tiles.first_query);
  Scores scores;
  Scores dp;
  multiply_rows(scores, tiles.key, tiles.query);
  if constexpr (Tiles::computes_ds) multiply_rows(dp, tiles.value, tiles.grad_output);
#pragma unroll
  for (int step = 0; step < Tiles::warp_queries / depth; ++step) {
    Fragments<Element, Tiles::row_tiles, depth> p;
    Fragments<Element, Tiles::row_tiles, depth> ds;
    of_warp.template differentiate<has_several_entries<Config>>(step, scores, dp, p, ds, scale, out_scale);
    // Where every column warp computes all scores, one of them stores dS.
    if constexpr (Tiles::stores_ds && Tiles::computes_ds) {
      if (Tiles::splits_scores || tiles.column == 0) ds.store(tiles.ds.from(0, step * depth));
    }
    if constexpr (Config::computes_grad_value) {
      if constexpr (Tiles::splits_scores) {
        p.store(tiles.p.from(0, step * depth));
      } else {
        multiply_fragments(grad_value, p, tiles.grad_output.from(step * depth, tiles.column_v));
      }
    }
    if constexpr (Config::computes_grad_key && !Tiles::splits_scores) {
      multiply_fragments(grad_key, ds, tiles.query.from(step * depth, tiles.column));
    }
  }
}

}  // namespace gdpa::portable
