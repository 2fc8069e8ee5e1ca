// S, P, dP and dS of one tile of keys and one tile of queries, in the registers of the portable backward's warps.
#pragma once

#include "common/fragment_columns.cuh"
#include "common/fragment_inputs.cuh"
#include "common/score_scale.cuh"
#include "common/sequence.cuh"
#include "common/tile.cuh"
#include "portable/backward_tiles.cuh"
#include "portable/query_tile_iterator.cuh"

namespace gdpa::portable {

/// Computes P = f(scale * S) and dS = dP * f'(scale * S), rounded to the element type, for columns
/// [step, step + 1) * depth. Both are 0 where the mask excludes the pair. Rows are keys, columns are queries.
template <class Config, bool is_partial, class TileInputs, int row_tiles, int columns, int depth>
__device__ void differentiate(int step, const Accumulator<row_tiles, columns>& scores,
                              const Accumulator<row_tiles, columns>& dp,
                              Fragments<typename Config::Element, row_tiles, depth>& p,
                              Fragments<typename Config::Element, row_tiles, depth>& ds, float scale, float out_scale,
                              const ColumnScores<typename Config::Mask, columns / 8> (&valid)[row_tiles],
                              const typename Config::Activation& activation, TileInputs (&inputs)[row_tiles]) {
  using Scores = Accumulator<row_tiles, columns>;
  using Activation = typename Config::Activation;
#pragma unroll
  for (int r = 0; r < row_tiles; ++r) {
#pragma unroll
    for (int n = 0; n < depth / 8; ++n) {
      const int column_tile = step * (depth / 8) + n;
      float value[4];
      float gradient[4];
      inputs[r].enter(column_tile);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float score = scores.at[r][column_tile].part[i] * scale;
        float derivative;
        activation.value_and_derivative(score, inputs[r].at(i), value[i], derivative);
        gradient[i] = dp.at[r][column_tile].part[i] * derivative;  // 0 where dS is not computed
        if constexpr (has_several_entries<Config>) {
          value[i] *= out_scale;
          gradient[i] *= out_scale;
        }
        if (is_partial && !valid[r].holds(i / 2, column_tile * 8 + i % 2)) {
          value[i] = gradient[i] = 0.0f;
        }
      }
      if constexpr (Config::computes_grad_value) p.set(r, n, value);
      if constexpr (BackwardTiles<Config>::computes_ds) ds.set(r, n, gradient);
    }
  }
}

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

/// The valid queries of keys `key` and `key + 8`. If the owner is rows of the operand, the keys may be below 0, where
/// no key is: a mask accepts keys of 0 or more.
template <class Config, int groups>
__device__ auto valid_columns(const typename Config::Mask& mask, int key, int first_query) {
  using Valid = ColumnScores<typename Config::Mask, groups>;
  if constexpr (!Config::Layout::owns_rows) {
    return mask.template columns<Valid>(key, first_query);
  } else {
    const Valid valid = mask.template columns<Valid>(key < 0 ? max(key + 8, 0) : key, first_query);
    return key < 0 ? valid.after_missing_row(key + 8 >= 0) : valid;
  }
}

/// Computes P^T and dS^T of this warp's keys and of one tile of queries. Stores them to shared memory where other warps
/// read them; otherwise adds P^T dO to dV and dS^T Q to dK. P and dS are computed one step of the products at a time,
/// so that the tensor cores and the arithmetic of the function overlap.
template <class Config, bool is_partial, class GradKey, class GradValue>
__device__ void compute_scores(GradKey& grad_key, GradValue& grad_value, const WarpTiles<Config>& tiles,
                               const Params& params, const SequencePair& pair, float scale, float out_scale) {
  using Tiles = BackwardTiles<Config>;
  using Element = typename Config::Element;
  using Scores = Accumulator<Tiles::row_tiles, Tiles::warp_queries>;
  constexpr int depth = product_depth<Element>;
  constexpr int groups = Tiles::warp_queries / 8;
  ColumnScores<typename Config::Mask, groups> valid[Tiles::row_tiles] = {};
  if constexpr (is_partial) {
    const auto mask = Config::Mask::of(params, pair);
    for (int r = 0; r < Tiles::row_tiles; ++r) {
      valid[r] = valid_columns<Config, groups>(mask, tiles.first_key + Scores::row(r, 0),
                                               tiles.first_query + Scores::column(0, 0));
    }
  }
  const auto of_pair = Config::Inputs::of(params, pair);
  const auto activation = Config::Activation::of(params, pair.head);
  FragmentInputs<typename Config::Inputs, FragmentRows::keys, 0, BiasTile::none, false, Config::Layout::owns_rows>
      inputs[Tiles::row_tiles];
  for (int r = 0; r < Tiles::row_tiles; ++r) {
    inputs[r] = {of_pair, tiles.first_key + Scores::row(r, 0), tiles.first_query + Scores::column(0, 0)};
  }
  Scores scores;
  Scores dp;
  multiply_rows(scores, tiles.key, tiles.query);
  if constexpr (Tiles::computes_ds) multiply_rows(dp, tiles.value, tiles.grad_output);
#pragma unroll
  for (int step = 0; step < Tiles::warp_queries / depth; ++step) {
    Fragments<Element, Tiles::row_tiles, depth> p;
    Fragments<Element, Tiles::row_tiles, depth> ds;
    differentiate<Config, is_partial>(step, scores, dp, p, ds, scale, out_scale, valid, activation, inputs);
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
