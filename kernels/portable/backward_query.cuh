// dQ, summed in one order without atomic operations, for deterministic mode; backward.cuh then computes dK and dV only.
// Both kernels together compute seven products, where the default computes five.
//
// A CTA owns one tile of queries of one head. Each warp owns 16 * row_tiles rows of the tile, as in forward.cuh:
//
//     Q, dO           ->  shared memory, once
//     K, V tile i     ->  stage i % stages, copied `stages - 1` tiles ahead
//     S = Q K^T, dP = dO V^T  ->  registers     dS = dP * f'(scale * S)  ->  registers, as the A operand
//     dQ += dS K      ->  registers
//
// Where the accumulators of dQ do not fit in the registers of warps that have all columns (d > 128), column_warps split
// the columns. Each of these warps computes all scores of its rows.
//
// Where the batch shares Q, it is cut into splits. A CTA iterates over one split and writes an fp32 partial result.
// reduce.cuh adds the partial results in order.
//
// Launch: grid as in schedule.cuh, queries own the work; block backward_query_threads<Config>; dynamic shared memory
//         backward_query_shared_bytes<Config>. Workspace: the partial results grad_query_accumulator where
//         queries_shared, not cleared.
//
// Config: struct with
//     using Element, Activation;                types.cuh; the backward functions of src/codegen/function.h
//     using Mask, Inputs;                         window_mask.cuh, no_inputs.cuh
//     using Layout, Epilogue;                   packed_layout.cuh, scale_epilogue.cuh
//     int head_dim, head_dim_v;                 multiples of 8, at most 256
//     int tile_queries, tile_keys;              multiples of 16 * warps and of 16
//     int warps, column_warps, stages, ctas;    warps along the queries; warps along the columns of dQ
//     bool aligned;                             every row of every operand begins at a multiple of 16 bytes
//     bool queries_shared;
#pragma once

#include "common/fragment_columns.cuh"
#include "common/fragment_inputs.cuh"
#include "common/scale_epilogue.cuh"
#include "common/score_scale.cuh"
#include "portable/key_stream.cuh"
#include "portable/schedule.cuh"

namespace gdpa::portable {

template <class Config>
struct BackwardQueryTiles {
  using Stream = KeyStream<Config>;
  using QueryTile = typename Stream::KeyTile;
  using GradOutputTile = typename Stream::ValueTile;
  static constexpr int threads = Stream::threads;
  static constexpr int warp_rows = Config::tile_queries / Config::warps;
  static constexpr int row_tiles = warp_rows / 16;
  static constexpr int query_bytes = QueryTile::bytes(Config::tile_queries);
  static constexpr int grad_output_bytes = GradOutputTile::bytes(Config::tile_queries);
  static constexpr int shared_bytes = query_bytes + grad_output_bytes + Stream::bytes;
};

template <class Config>
constexpr int backward_query_threads = BackwardQueryTiles<Config>::threads;
template <class Config>
constexpr int backward_query_shared_bytes = BackwardQueryTiles<Config>::shared_bytes;

/// Computes dS = dP * f'(scale * S), rounded to the element type; 0 where the mask excludes the pair.
template <class Config, bool is_partial, int row_tiles>
__device__ void differentiate_scores(const Accumulator<row_tiles, Config::tile_keys>& scores,
                                     const Accumulator<row_tiles, Config::tile_keys>& dp,
                                     Fragments<typename Config::Element, row_tiles, Config::tile_keys>& ds, float scale,
                                     float factor, const Params& params, const SequencePair& pair, int first_query,
                                     int first_key) {
  using Activation = typename Config::Activation;
  const auto mask = Config::Mask::of(params, pair);
  const auto of_pair = Config::Inputs::of(params, pair);
  const auto activation = Activation::of(params, pair.head);
  using Scores = Accumulator<row_tiles, Config::tile_keys>;
#pragma unroll
  for (int r = 0; r < row_tiles; ++r) {
    constexpr int groups = Config::tile_keys / 8;
    using Valid = RowScores<typename Config::Mask, groups>;
    Valid valid = {};
    if constexpr (is_partial) {
      valid = mask.template rows<Valid>(first_query + Scores::row(r, 0), first_key + Scores::column(0, 0));
    }
    FragmentInputs<typename Config::Inputs, FragmentRows::queries> inputs(of_pair, first_query + Scores::row(r, 0),
                                                                          first_key + Scores::column(0, 0));
#pragma unroll
    for (int n = 0; n < Config::tile_keys / 8; ++n) {
      float gradient[4];
      inputs.enter(n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float value;
        float derivative;
        activation.value_and_derivative(scores.at[r][n].part[i] * scale, inputs.at(i), value, derivative);
        gradient[i] = dp.at[r][n].part[i] * derivative;
        if constexpr (Config::queries_shared) gradient[i] *= factor;
        if (is_partial && !valid.holds(i / 2, n * 8 + i % 2)) gradient[i] = 0.0f;
      }
      ds.set(r, n, gradient);
    }
  }
}

/// Adds to dQ the products with the keys of batch entry b.
template <class Config, class Gradient>
__device__ void add_entry(const CommonArguments& arguments, const Work& work, int64_t b, unsigned shared,
                          Gradient& grad_query) {
  using Tiles = BackwardQueryTiles<Config>;
  using Element = typename Config::Element;
  using Storage = typename Element::Storage;
  constexpr int row_tiles = Tiles::row_tiles;
  const Params& params = arguments.params;
  const Rows queries = Config::queries_shared ? queries_of<typename Config::Layout>(arguments, b) : work.queries;
  const Rows keys = Config::queries_shared ? keys_of<typename Config::Layout>(arguments, b) : work.keys;
  const SequencePair pair = pair_in_batch(params, b, work.head, queries.count, keys.count);
  const int first_query = work.tile * Config::tile_queries;
  const typename Tiles::QueryTile query_tile{shared};
  const typename Tiles::GradOutputTile grad_output_tile{shared + Tiles::query_bytes};
  const typename Tiles::Stream stream(
      params, b, work.key_head, keys, grad_output_tile.base + Tiles::grad_output_bytes,
      Config::Mask::of(params, pair).key_tiles(first_query, Config::tile_queries, Config::tile_keys));

  __syncthreads();  // every warp has read the previous entry
  load_rows<Tiles::threads, Config::aligned, Config::tile_queries, Config::head_dim>(
      query_tile,
      static_cast<const Storage*>(params.query.data) +
          Config::Layout::offset_of(params.query, queries, b, first_query, work.head),
      params.query.row_stride, queries.count - first_query);
  load_rows<Tiles::threads, Config::aligned, Config::tile_queries, Config::head_dim_v>(
      grad_output_tile,
      static_cast<const Storage*>(params.grad_output.data) +
          Config::Layout::offset_of(params.grad_output, Config::Layout::output_rows(params, queries, b), b, first_query,
                                    work.head),
      params.grad_output.row_stride, queries.count - first_query);
  stream.start();

  const int warp_row = warp_index() / Config::column_warps * Tiles::warp_rows;
  const int column = warp_index() % Config::column_warps * Tiles::Stream::warp_columns;
  const float scale = score_scale<typename Config::Activation>(static_cast<float>(params.scale));
  const float factor = Config::queries_shared ? Config::Epilogue::scale_of(arguments, pair) : 1.0f;
  for (int position = 0; position < stream.tiles.size(); ++position) {
    stream.advance(position);
    const int first_key = stream.first_key(position);
    Accumulator<row_tiles, Config::tile_keys> scores;
    Accumulator<row_tiles, Config::tile_keys> dp;
    multiply_rows(scores, query_tile.from_row(warp_row), stream.key_tile(position));
    multiply_rows(dp, grad_output_tile.from_row(warp_row), stream.value_tile(position));
    Fragments<Element, row_tiles, Config::tile_keys> ds;
    if (stream.tiles.is_full(position)) {
      differentiate_scores<Config, false>(scores, dp, ds, scale, factor, params, pair, first_query + warp_row,
                                          first_key);
    } else {
      differentiate_scores<Config, true>(scores, dp, ds, scale, factor, params, pair, first_query + warp_row,
                                         first_key);
    }
    multiply_fragments(grad_query, ds, stream.key_tile(position).from(0, column));
  }
  wait_for_copies<0>();
}

template <class Config>
__device__ void backward_query_tile(const CommonArguments& arguments, const Work& work, unsigned shared) {
  using Tiles = BackwardQueryTiles<Config>;
  using Storage = typename Config::Element::Storage;
  const Params& params = arguments.params;
  Accumulator<Tiles::row_tiles, Tiles::Stream::warp_columns> grad_query;
  for (int64_t b = work.batch_begin; b < work.batch_end; ++b) {
    add_entry<Config>(arguments, work, b, shared, grad_query);
  }
  __syncthreads();  // no warp reads Q any more, and its copy is complete: dQ is staged there

  const int warp_row = warp_index() / Config::column_warps * Tiles::warp_rows;
  const int column = warp_index() % Config::column_warps * Tiles::Stream::warp_columns;
  const int first_query = work.tile * Config::tile_queries;
  const float scale = static_cast<float>(params.scale);
  if constexpr (Config::queries_shared) {
    const Operand& partial = arguments.grad_query_accumulator;
    auto* to = static_cast<float*>(partial.data) +
               Config::Layout::offset_of(partial, work.queries, work.entry, first_query + warp_row, work.head) + column;
    visit_accumulator(grad_query, scale, [&](int r, int c, const float(&values)[4]) {
      if (first_query + warp_row + r >= work.queries.count || column + c >= padded_columns(Config::head_dim)) return;
      *reinterpret_cast<float4*>(to + r * partial.row_stride + c) = {values[0], values[1], values[2], values[3]};
    });
  } else {
    const typename Tiles::QueryTile staging{shared};
    const float factor = scale * Config::Epilogue::scale_of(arguments, pair_of(arguments.params, work));
    stage_accumulator(grad_query, staging.from(warp_row, column),
                      [factor](int /*row*/) { return [factor](float sum, int /*column*/) { return sum * factor; }; });
    __syncthreads();
    store_rows<Tiles::threads, Config::aligned, Config::tile_queries, Config::head_dim>(
        staging,
        static_cast<Storage*>(params.grad_query.data) +
            Config::Layout::offset_of(params.grad_query, work.queries, work.batch_begin, first_query, work.head),
        params.grad_query.row_stride, work.queries.count - first_query);
  }
}

template <class Config>
__device__ void backward_query(const CommonArguments& arguments) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  const int64_t entries = Config::queries_shared ? arguments.splits : arguments.params.batch;
  for_all_work(arguments, query_owner<Config>(arguments, entries), true,
               [&](const Work& work) { backward_query_tile<Config>(arguments, work, shared_address(shared_memory)); });
}

}  // namespace gdpa::portable
