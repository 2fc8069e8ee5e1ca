// The tiles of the portable backward: how the warps of a CTA split them, and how shared memory is laid out.
#pragma once

#include "common/tile.cuh"

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

}  // namespace gdpa::portable
