// Forward on the tensor cores of any GPU since Ampere: O = out_scale * f(scale * Q K^T) V.
//
// A CTA owns one tile of queries of one head. Each warp owns 16 * row_tiles rows of the tile. K and V stream through
// `stages` buffers of shared memory by asynchronous copies:
//
//     Q            ->  shared memory, once
//     K, V tile i  ->  stage i % stages, copied `stages - 1` tiles ahead (key_stream.cuh)
//     S = Q K^T    ->  registers        P = f(scale * S)  ->  registers, as the A operand of the next product
//     O += P V     ->  registers        O * out_scale     ->  the rows of Q in shared memory  ->  global memory
//
// P is not normalised, so the tiles of keys are independent. The warps need one CTA barrier for each tile.
//
// Where the accumulators of O do not fit in the registers of warps that have all columns (fp32, d_v > 128),
// column_warps split the columns. Each of these warps computes all scores of its rows.
//
// Launch: grid as in schedule.cuh, queries own the work; no workspace.
//
// Config: struct of key_stream.cuh with
//     using Activation;                         the forward functions of src/codegen/function.h
#pragma once

#include "portable/key_stream.cuh"
#include "portable/operand_rows.cuh"
#include "portable/schedule.cuh"
#include "portable/scores.cuh"

namespace gdpa::portable {

template <class Config>
struct ForwardTiles {
  using Stream = KeyStream<Config>;
  using QueryTile = typename Stream::KeyTile;
  using OutputTile = typename Stream::ValueTile;
  static constexpr int threads = Stream::threads;
  /// Q, and after the main loop O.
  static constexpr int query_bytes =
      Config::tile_queries * (QueryTile::pitch > OutputTile::pitch ? QueryTile::pitch : OutputTile::pitch);
  static constexpr int shared_bytes = query_bytes + Stream::bytes;
};

template <class Config>
using forward_cta = ForwardTiles<Config>;

/// O += f(scale * Q K^T) V for one tile of keys. With is_partial, P is 0 where the mask excludes the pair.
template <class Config, bool is_partial, int row_tiles, int columns_v, class KeyTile, class ValueTile>
__device__ void attend(Accumulator<row_tiles, columns_v>& output, KeyTile query, KeyTile key, ValueTile value,
                       float scale, const Params& params, const SequencePair& pair, int first_query, int first_key) {
  using Element = typename Config::Element;
  using Activation = typename Config::Activation;
  constexpr int depth = product_depth<Element>;
  WarpScores<Config, FragmentRows::queries, is_partial, row_tiles, Config::tile_keys> of_warp(params, pair, first_query,
                                                                                              first_key);
  Accumulator<row_tiles, Config::tile_keys> scores;
  multiply_rows(scores, query, key);
  __syncwarp();  // without it the compiler loads V too early where f is short, and spills
#pragma unroll
  for (int step = 0; step < Config::tile_keys / depth; ++step) {
    Fragments<Element, row_tiles, depth> p;
    of_warp.template visit<depth>(step, [&](int r, int n, int column_tile) {
      float values[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float score = scores.at[r][column_tile].part[i];
        values[i] =
            of_warp.activation.value(Activation::scales_scores ? score * scale : score, of_warp.inputs[r].at(i));
        if (of_warp.is_masked(r, column_tile, i)) values[i] = 0.0f;
      }
      p.template set<Activation::clamps_at_zero>(r, n, values);
    });
    multiply_fragments(output, p, value.from_row(step * depth));
  }
}

/// Stores O, which the epilogue computes from the accumulators. O is staged in the shared memory of Q.
template <class Config, class Output>
__device__ void store_output(const CommonArguments& arguments, const Work& work, const Output& output,
                             unsigned shared) {
  using Tiles = ForwardTiles<Config>;
  const int first_query = work.tile * Config::tile_queries;
  const typename Tiles::OutputTile staging{shared};
  const float factor = Config::Activation::value_factor_of(arguments.params, work.head) * arguments.output_factor *
                       Config::Epilogue::scale_of(arguments, pair_of(arguments.params, work));
  const int warp_row = Tiles::Stream::warp_row();
  const int warp_column = Tiles::Stream::column_warp() * Tiles::Stream::warp_columns_v;
  const auto epilogue = Config::Epilogue::of(arguments, pair_of(arguments.params, work), factor);
  stage_accumulator(output, staging.from(warp_row, warp_column), [&](int row) {
    return [of_query = epilogue.row(first_query + warp_row + row), warp_column](float sum, int column) {
      return of_query(sum, warp_column + column);
    };
  });
  __syncthreads();
  store_operand<Config, Tiles::threads, Config::tile_queries, Config::head_dim_v>(
      staging, arguments.params.output, Config::Layout::output_rows(arguments.params, work.queries, work.batch_begin),
      work.batch_begin, first_query, work.head);
}

template <class Config>
__device__ void forward_tile(const CommonArguments& arguments, const Work& work, unsigned shared) {
  using Tiles = ForwardTiles<Config>;
  const Params& params = arguments.params;
  // `work` is in shared memory. Values that are read from it again for each tile of keys occupy no registers in
  // between.
  const auto pair = [&] { return pair_of(arguments.params, work); };
  const auto first_query = [&] { return work.tile * Config::tile_queries; };
  const typename Tiles::QueryTile query_tile{shared};
  const typename Tiles::Stream stream(
      params, work.batch_begin, work.key_head, work.keys, shared + Tiles::query_bytes,
      Config::Mask::of(params, pair()).key_tiles(first_query(), Config::tile_queries, Config::tile_keys));

  load_operand<Config, Tiles::threads, Config::tile_queries, Config::head_dim>(
      query_tile, params.query, work.queries, work.batch_begin, first_query(), work.head);
  stream.start();

  const int warp_row = Tiles::Stream::warp_row();
  const int column = Tiles::Stream::column_warp() * Tiles::Stream::warp_columns_v;
  const float scale = static_cast<float>(params.scale) * Config::Activation::score_factor;
  Accumulator<Tiles::Stream::row_tiles, Tiles::Stream::warp_columns_v> output;
  for (int position = 0; position < stream.tiles.size(); ++position) {
    stream.advance(position);
    if (first_query() + warp_row >= work.queries.count) continue;
    const int first_key = stream.first_key(position);
    if (stream.tiles.is_full(position)) {
      attend<Config, false>(output, query_tile.from_row(warp_row), stream.key_tile(position),
                            stream.value_tile(position).from(0, column), scale, params, pair(),
                            first_query() + warp_row, first_key);
    } else {
      attend<Config, true>(output, query_tile.from_row(warp_row), stream.key_tile(position),
                           stream.value_tile(position).from(0, column), scale, params, pair(), first_query() + warp_row,
                           first_key);
    }
  }
  wait_for_copies<0>();
  __syncthreads();  // no warp reads Q any more, and its copy is complete: O is staged there
  store_output<Config>(arguments, work, output, shared);
}

template <class Config>
__device__ void forward(const CommonArguments& arguments) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  for_all_work(arguments, query_owner<Config>(arguments, arguments.params.batch), true,
               [&](const Work& work) { forward_tile<Config>(arguments, work, shared_address(shared_memory)); });
}

}  // namespace gdpa::portable
