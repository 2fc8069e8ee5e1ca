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
// Launch: grid as in schedule.cuh, queries own the work; block forward_threads<Config>; dynamic shared memory
//         forward_shared_bytes<Config>; no workspace.
//
// Config: struct with
//     using Element, Activation;                types.cuh; the forward functions of src/codegen/function.h
//     using Mask, Inputs;                         window_mask.cuh, no_inputs.cuh
//     using Layout, Epilogue;                   packed_layout.cuh, scale_epilogue.cuh
//     int head_dim, head_dim_v;                 multiples of 8, at most 256
//     int tile_queries, tile_keys;              multiples of 16 * warps and of 16
//     int warps, column_warps, stages;          along the queries; along the columns of O
//     int ctas;                                 CTAs that have to fit on one multiprocessor
//     bool aligned;                             every row of every operand begins at a multiple of 16 bytes
#pragma once

#include "common/fragment_columns.cuh"
#include "common/fragment_inputs.cuh"
#include "portable/key_stream.cuh"
#include "portable/schedule.cuh"

namespace gdpa::portable {

template <class Config>
struct ForwardTiles {
  using Stream = KeyStream<Config>;
  using QueryTile = typename Stream::KeyTile;
  using OutputTile = typename Stream::ValueTile;
  static constexpr int threads = Stream::threads;
  static constexpr int warp_rows = Config::tile_queries / Config::warps;
  static constexpr int row_tiles = warp_rows / 16;
  /// Q, and after the main loop O.
  static constexpr int query_bytes =
      Config::tile_queries * (QueryTile::pitch > OutputTile::pitch ? QueryTile::pitch : OutputTile::pitch);
  static constexpr int shared_bytes = query_bytes + Stream::bytes;
};

template <class Config>
constexpr int forward_threads = ForwardTiles<Config>::threads;
template <class Config>
constexpr int forward_shared_bytes = ForwardTiles<Config>::shared_bytes;

/// O += f(scale * Q K^T) V for one tile of keys. With is_partial, P is 0 where the mask excludes the pair. P is
/// computed one step of the second product at a time, so that the tensor cores and the arithmetic of the function
/// overlap.
template <class Config, bool is_partial, int row_tiles, int columns_v, class KeyTile, class ValueTile>
__device__ void attend(Accumulator<row_tiles, columns_v>& output, KeyTile query, KeyTile key, ValueTile value,
                       float scale, const Params& params, const SequencePair& pair, int first_query, int first_key) {
  using Element = typename Config::Element;
  using Activation = typename Config::Activation;
  using Scores = Accumulator<row_tiles, Config::tile_keys>;
  constexpr int depth = product_depth<Element>;
  constexpr int groups = Config::tile_keys / 8;
  using Valid = RowScores<typename Config::Mask, groups>;
  Valid valid[row_tiles] = {};
  if constexpr (is_partial) {
    const auto mask = Config::Mask::of(params, pair);
    for (int r = 0; r < row_tiles; ++r) {
      valid[r] = mask.template rows<Valid>(first_query + Scores::row(r, 0), first_key + Scores::column(0, 0));
    }
  }
  const auto of_pair = Config::Inputs::of(params, pair);
  const auto activation = Activation::of(params, pair.head);
  FragmentInputs<typename Config::Inputs, FragmentRows::queries> inputs[row_tiles];
  for (int r = 0; r < row_tiles; ++r) {
    inputs[r] = {of_pair, first_query + Scores::row(r, 0), first_key + Scores::column(0, 0)};
  }
  Scores scores;
  multiply_rows(scores, query, key);
  __syncwarp();  // without it the compiler loads V too early where f is short, and spills
#pragma unroll
  for (int step = 0; step < Config::tile_keys / depth; ++step) {
    Fragments<Element, row_tiles, depth> p;
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) {
#pragma unroll
      for (int n = 0; n < depth / 8; ++n) {
        const int column_tile = step * (depth / 8) + n;
        float values[4];
        inputs[r].enter(column_tile);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float score = scores.at[r][column_tile].part[i];
          values[i] = activation.value(Activation::scales_scores ? score * scale : score, inputs[r].at(i));
          if (is_partial && !valid[r].holds(i / 2, column_tile * 8 + i % 2)) values[i] = 0.0f;
        }
        p.template set<Activation::clamps_at_zero>(r, n, values);
      }
    }
    multiply_fragments(output, p, value.from_row(step * depth));
  }
}

/// Stores O, which the epilogue computes from the accumulators. O is staged in the shared memory of Q.
template <class Config, class Output>
__device__ void store_output(const CommonArguments& arguments, const Work& work, const Output& output,
                             unsigned shared) {
  using Tiles = ForwardTiles<Config>;
  using Storage = typename Config::Element::Storage;
  const Operand& target = arguments.params.output;
  const int first_query = work.tile * Config::tile_queries;
  const typename Tiles::OutputTile staging{shared};
  const float factor = Config::Activation::value_factor_of(arguments.params, work.head) * arguments.output_factor *
                       Config::Epilogue::scale_of(arguments, pair_of(arguments.params, work));
  const int warp_row = warp_index() / Config::column_warps * Tiles::warp_rows;
  const int warp_column = warp_index() % Config::column_warps * Tiles::Stream::warp_columns_v;
  const auto epilogue = Config::Epilogue::of(arguments, pair_of(arguments.params, work), factor);
  stage_accumulator(output, staging.from(warp_row, warp_column), [&](int row) {
    return [of_query = epilogue.row(first_query + warp_row + row), warp_column](float sum, int column) {
      return of_query(sum, warp_column + column);
    };
  });
  __syncthreads();
  store_rows<Tiles::threads, Config::aligned, Config::tile_queries, Config::head_dim_v>(
      staging,
      static_cast<Storage*>(target.data) +
          Config::Layout::offset_of(target,
                                    Config::Layout::output_rows(arguments.params, work.queries, work.batch_begin),
                                    work.batch_begin, first_query, work.head),
      target.row_stride, work.queries.count - first_query);
}

template <class Config>
__device__ void forward_tile(const CommonArguments& arguments, const Work& work, unsigned shared) {
  using Tiles = ForwardTiles<Config>;
  constexpr int row_tiles = Tiles::row_tiles;
  const Params& params = arguments.params;
  // `work` is in shared memory. Values that are read from it again for each tile of keys occupy no registers in
  // between.
  const auto pair = [&] { return pair_of(arguments.params, work); };
  const auto first_query = [&] { return work.tile * Config::tile_queries; };
  const typename Tiles::QueryTile query_tile{shared};
  const typename Tiles::Stream stream(
      params, work.batch_begin, work.key_head, work.keys, shared + Tiles::query_bytes,
      Config::Mask::of(params, pair()).key_tiles(first_query(), Config::tile_queries, Config::tile_keys));

  load_rows<Tiles::threads, Config::aligned, Config::tile_queries, Config::head_dim>(
      query_tile,
      static_cast<const typename Config::Element::Storage*>(params.query.data) +
          Config::Layout::offset_of(params.query, work.queries, work.batch_begin, first_query(), work.head),
      params.query.row_stride, work.queries.count - first_query());
  stream.start();

  const int warp_row = warp_index() / Config::column_warps * Tiles::warp_rows;
  const int column = warp_index() % Config::column_warps * Tiles::Stream::warp_columns_v;
  const float scale = static_cast<float>(params.scale) * Config::Activation::score_factor;
  Accumulator<row_tiles, Tiles::Stream::warp_columns_v> output;
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
