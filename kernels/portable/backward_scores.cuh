// S, P, dP and dS of one tile of keys and one tile of queries, in the registers of the portable backward's warps.
#pragma once

#include "portable/backward_tiles.cuh"
#include "portable/query_tile_iterator.cuh"
#include "portable/scores.cuh"

namespace gdpa::portable {

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
