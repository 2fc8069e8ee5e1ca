// Backward on the tensor cores of any GPU since Ampere: dK and dV, and dQ by reduction.
//
// A CTA owns one tile of keys of one key head. It iterates over the tiles of queries that attend to these keys, of
// every query head of the group. The scores are recomputed, transposed, so that P^T and dS^T are in registers as A
// operands:
//
//     K, V            ->  shared memory, once
//     Q, dO tile i    ->  stage i % stages, copied `stages - 1` tiles ahead
//     S^T = K Q^T, dP^T = V dO^T   ->  registers      P = f(scale * S), dS = dP * f'(scale * S)
//     dV += P^T dO,   dK += dS^T Q ->  registers, the accumulators of the whole loop
//     dS              ->  shared memory: dQ needs the keys of all warps
//     dQ = dS K       ->  added to an fp32 accumulator in global memory, which reduce.cuh then rounds
//
// key_warps split the keys. Where dK and dV do not fit in the registers of warps that have all columns (d > 128),
// column_warps split the columns and, for the scores, the queries; P then goes through shared memory as dS does. A tile
// of fewer than 16 queries for each column warp is not split: each column warp computes all scores of its keys.
//
// The additions to dQ come in any order, so dQ differs in the last bits from run to run. In deterministic mode
// reduce_grad_query is false here, and backward_query.cuh computes dQ. dK and dV are always summed in one order.
//
// Where the batch shares K and V, it is cut into splits. A CTA iterates over one split and writes an fp32 partial
// result. reduce.cuh adds the partial results in order. With a batch map, a CTA iterates over all batch entries that
// have its keys (MappedLayout), so that their sum stays in registers. If sequences of keys overlap, a CTA
// has rows of the operand instead, and iterates over all entries with a key among them (RowsLayout).
//
// Launch: grid as in schedule.cuh, keys own the work. Workspace: grad_query_accumulator where reduce_grad_query,
//         cleared before; the partial results grad_key_accumulator and grad_value_accumulator where keys_shared, not
//         cleared.
//
// Config: struct with
//     using Element, Activation;                types.cuh; the backward functions of src/codegen/function.h
//     using Mask, Inputs;                       window_mask.cuh, no_inputs.cuh
//     using Layout;                             PackedLayout, MappedLayout or RowsLayout of packed_layout.cuh
//     using Epilogue;                           epilogues.cuh
//     int head_dim, head_dim_v;                 multiples of 8, at most 256
//     int tile_keys, tile_queries;              multiples of 16 * key_warps and of 16
//     int key_warps, column_warps, stages, ctas;
//     bool aligned;                             every row of every operand begins at a multiple of 16 bytes
//     bool reduce_grad_query, keys_shared;      reduce_grad_query must be false with RowsLayout: rows of other
//                                               entries are in the tile of K
//     bool computes_grad_key, computes_grad_value;   false: the products that only this gradient needs are left out
//
// backward_scores.cuh lays out the tiles and computes P and dS. query_tile_iterator.cuh visits the tiles of queries.
#pragma once

#include "common/score_scale.cuh"
#include "portable/backward_scores.cuh"
#include "portable/operand_rows.cuh"
#include "portable/query_tile_iterator.cuh"
#include "portable/schedule.cuh"

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

/// Computes dK and dV of one tile of keys, and adds its part of dQ.
template <class Config>
__device__ void backward_tile(const CommonArguments& arguments, const Work& work, unsigned shared) {
  using Tiles = BackwardTiles<Config>;
  using KeyTile = typename Tiles::QueryOrKey;
  using ValueTile = typename Tiles::Value;
  using ScoresTile = typename Tiles::Scores;
  constexpr int row_tiles = Tiles::row_tiles;
  const Params& params = arguments.params;
  const KeyTile key_tile{shared};
  const ValueTile value_tile{shared + Tiles::key_bytes};
  const unsigned stages = value_tile.base + Tiles::value_bytes;
  const ScoresTile ds_tile{stages + Config::stages * Tiles::stage_bytes};
  const ScoresTile p_tile{ds_tile.base + Tiles::scores_bytes};
  const auto query_tile = [&](int stage) {
    return KeyTile{stages + static_cast<unsigned>(stage * Tiles::stage_bytes)};
  };
  const auto grad_output_tile = [&](int stage) { return ValueTile{query_tile(stage).base + Tiles::query_bytes}; };

  __shared__ QueryTileCoord coords[Config::stages];  // of the tile in each stage
  const auto load_stage = [&](int stage, const QueryTileIterator<Config>& at) {
    if (threadIdx.x == 0) coords[stage] = at.coord();
    if (at.head >= 0) {
      const int64_t b = at.entry();
      load_queries<Config, Tiles::threads>(query_tile(stage), grad_output_tile(stage), params,
                                           queries_of_entry<Config>(arguments, work, b), b, at.query(), at.head);
    }
    commit_copies();
  };

  load_operand<Config, Tiles::threads, Config::tile_keys, Config::head_dim>(key_tile, params.key, work.keys, work.entry,
                                                                            work.tile * Config::tile_keys, work.head);
  if constexpr (Tiles::computes_ds) {
    load_operand<Config, Tiles::threads, Config::tile_keys, Config::head_dim_v>(
        value_tile, params.value, work.keys, work.entry, work.tile * Config::tile_keys, work.head);
  }
  const int warp_key = warp_index() / Config::column_warps * Tiles::warp_keys;
  const int column_warp = warp_index() % Config::column_warps;
  const int warp_query = Tiles::splits_scores ? column_warp * Tiles::warp_queries : 0;
  const int column = column_warp * Tiles::warp_columns;
  const int column_v = column_warp * Tiles::warp_columns_v;
  using Activation = typename Config::Activation;
  const float scale_of_scores = score_scale<Activation>(static_cast<float>(params.scale));
  // Computed from scale_of_scores at each use, which saves a register.
  const auto scale = [&] {
    return Activation::scales_scores ? scale_of_scores * (1.0f / Activation::score_factor)
                                     : static_cast<float>(params.scale);
  };
  // out_scale multiplies the finished accumulators. If these sum over several entries, which may differ in out_scale,
  // it multiplies P and dS.
  const float factor =
      has_several_entries<Config> ? 1.0f : Config::Epilogue::scale_of(arguments, pair_of(arguments.params, work));
  Accumulator<row_tiles, Tiles::warp_columns> grad_key;
  Accumulator<row_tiles, Tiles::warp_columns_v> grad_value;

  __shared__ typename Config::Mask::Tiles listed_tiles;
  QueryTileIterator<Config> iterator(arguments, work, listed_tiles);
  for (int stage = 0; stage < Config::stages - 1; ++stage, iterator.next()) load_stage(stage, iterator);
  for (int stage = 0;; stage = stage + 1 == Config::stages ? 0 : stage + 1) {
    advance_stage<Config::stages>([&] { load_stage(stage == 0 ? Config::stages - 1 : stage - 1, iterator); });
    iterator.next();
    const QueryTileCoord& at = coords[stage];
    if (at.head < 0) break;

    const Rows queries = queries_of_entry<Config>(arguments, work, at.b);
    const SequencePair pair =
        pair_in_batch(arguments.params, at.b, at.head, queries.count, length_of_keys<Config>(arguments, work, at.b));
    const float out_scale = has_several_entries<Config> ? Config::Epilogue::scale_of(arguments, pair) : 1.0f;
    const int first_key = first_key_of<Config>(arguments, work, at.b);
    const WarpTiles<Config> tiles{key_tile.from_row(warp_key),
                                  value_tile.from_row(warp_key),
                                  query_tile(stage).from_row(warp_query),
                                  grad_output_tile(stage).from_row(warp_query),
                                  p_tile.from(warp_key, warp_query),
                                  ds_tile.from(warp_key, warp_query),
                                  first_key + warp_key,
                                  at.query + warp_query,
                                  column,
                                  column_v};
    if (at.is_full) {
      compute_scores<Config, false>(grad_key, grad_value, tiles, params, pair, scale_of_scores, out_scale);
    } else {
      compute_scores<Config, true>(grad_key, grad_value, tiles, params, pair, scale_of_scores, out_scale);
    }

    if constexpr (Tiles::stores_ds) __syncthreads();  // P and dS of every warp are stored
    if constexpr (Tiles::splits_scores && Config::computes_grad_value) {
      multiply_tiles<Config::tile_queries>(grad_value, p_tile.from_row(warp_key),
                                           grad_output_tile(stage).from(0, column_v));
    }
    if constexpr (Tiles::splits_scores && Config::computes_grad_key) {
      multiply_tiles<Config::tile_queries>(grad_key, ds_tile.from_row(warp_key), query_tile(stage).from(0, column));
    }
    if constexpr (Config::reduce_grad_query) {
      reduce_grad_query<Config>(arguments, work, at, ds_tile, key_tile, factor * scale());
    }
  }
  wait_for_copies<0>();
  __syncthreads();  // no warp reads K or V any more, and their copies are complete: dK and dV are staged there

  if constexpr (Config::computes_grad_key) {
    store_gradient<Config, Tiles::threads, Config::tile_keys, Config::head_dim, Config::keys_shared>(
        grad_key, factor * scale(), key_tile, params.grad_key, arguments.grad_key_accumulator, work, work.keys,
        warp_key, column);
  }
  if constexpr (Config::computes_grad_value) {
    store_gradient<Config, Tiles::threads, Config::tile_keys, Config::head_dim_v, Config::keys_shared>(
        grad_value, factor, value_tile, params.grad_value, arguments.grad_value_accumulator, work, work.keys, warp_key,
        column_v);
  }
}

template <class Config>
__device__ void backward(const CommonArguments& arguments) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  for_all_work(arguments, key_owner<Config>(arguments), false,
               [&](const Work& work) { backward_tile<Config>(arguments, work, shared_address(shared_memory)); });
}

}  // namespace gdpa::portable
