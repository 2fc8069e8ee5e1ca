// The gradients of the tensors that the function reads, on the tensor cores of any GPU since Ampere.
//
// dP is the gradient of P, so the gradient of an input of the function at one score is dP * df/dinput. The gradient of
// an element of a tensor is the sum over all scores that read the element. A CTA owns one tile of queries of one head,
// as in backward_query.cuh, and computes S and dP once more:
//
//     Q, dO           ->  shared memory, once
//     K, V tile i     ->  stage i % stages, copied `stages - 1` tiles ahead
//     S = Q K^T, dP = dO V^T  ->  registers
//     dP * df/dinput of each valid score  ->  a register, for a number of the head
//                                         ->  shared memory, for a read that depends only on i - j
//                                         ->  a histogram in shared memory, for a computed index of few elements
//                                         ->  the sum of the element in global memory, for another read
//
// The registers are added to the sums in global memory at the end of the tile. A warp adds up the diagonals of 16 rows
// in shared memory, and then adds each diagonal to the sums. common/parameter_sum.cuh has the types of the sums, and
// round_parameters.cuh the kernel that rounds the sums into the gradients.
//
// Launch: grid as in schedule.cuh, queries own the work; block parameter_gradients_threads<Config>; dynamic shared
//         memory parameter_gradients_shared_bytes<Config>. params.grad_parameters are the sums, cleared before.
//
// Config: struct with
//     using Element, Gradients;                 types.cuh; src/activation/cuda_inputs.h
//     using Mask, Layout, Epilogue;             window_mask.cuh, packed_layout.cuh, scale_epilogue.cuh
//     int head_dim, head_dim_v;                 multiples of 8, at most 256
//     int tile_queries, tile_keys;              multiples of 16 * warps and of 16
//     int warps, stages, ctas;                  warps along the queries
//     int column_warps;                         1
//     bool aligned;                             every row of every operand begins at a multiple of 16 bytes
#pragma once

#include "portable/key_stream.cuh"
#include "portable/schedule.cuh"

namespace gdpa::portable {

template <class Config>
struct ParameterGradientsTiles {
  using Stream = KeyStream<Config>;
  using QueryTile = typename Stream::KeyTile;
  using GradOutputTile = typename Stream::ValueTile;
  static constexpr int threads = Stream::threads;
  static constexpr int warp_rows = Config::tile_queries / Config::warps;
  static constexpr int row_tiles = warp_rows / 16;
  static constexpr int query_bytes = QueryTile::bytes(Config::tile_queries);
  static constexpr int grad_output_bytes = GradOutputTile::bytes(Config::tile_queries);
  /// The terms of 16 rows, for each warp. The pitch keeps the banks of a diagonal apart.
  static constexpr int term_pitch = Config::tile_keys + 8;
  static constexpr int term_bytes = 16 * term_pitch * 4;
  static constexpr int shared_bytes = query_bytes + grad_output_bytes + Stream::bytes + Config::warps * term_bytes;
};

template <class Config>
constexpr int parameter_gradients_threads = ParameterGradientsTiles<Config>::threads;
template <class Config>
constexpr int parameter_gradients_shared_bytes = ParameterGradientsTiles<Config>::shared_bytes;

/// Adds up the diagonals of 16 rows of terms of one warp, and adds them to the sums.
template <class Config>
__device__ void add_diagonals(typename Config::Gradients& gradients, int read, const float* terms, int first_query,
                              int first_key) {
  constexpr int pitch = ParameterGradientsTiles<Config>::term_pitch, count = 15 + Config::tile_keys;
  for (int first = 0; first < count; first += 32) {
    const int diagonal = first + lane_index();  // of key - query + 15
    float sum = 0.0f;
#pragma unroll
    for (int row = 0; row < 16; ++row) {
      const int column = diagonal - 15 + row;
      if (column >= 0 && column < Config::tile_keys) sum += terms[row * pitch + column];
    }
    gradients.add_diagonal(read, first_query + 15, first_key + min(diagonal, count - 1), sum);
  }
}

/// Adds the gradients of the inputs at the valid scores of one tile of keys.
template <class Config, bool is_partial, int row_tiles>
__device__ void add_gradients(typename Config::Gradients& gradients,
                              const Accumulator<row_tiles, Config::tile_keys>& scores,
                              const Accumulator<row_tiles, Config::tile_keys>& dp, float* terms, float scale,
                              float factor, const Params& params, const SequencePair& pair, int first_query,
                              int first_key) {
  using Scores = Accumulator<row_tiles, Config::tile_keys>;
  using Gradients = typename Config::Gradients;
  constexpr int diagonals = Gradients::diagonals;
  const auto mask = Config::Mask::of(params, pair);
#pragma unroll
  for (int r = 0; r < row_tiles; ++r) {
    typename Config::Mask::ValidScores valid[2] = {};
    if constexpr (is_partial) {
      for (int half = 0; half < 2; ++half) valid[half] = mask.row(first_query + Scores::row(r, half * 2));
    }
    // One pass for each diagonal read. The first one also adds the other gradients.
#pragma unroll
    for (int pass = 0; pass < (diagonals > 0 ? diagonals : 1); ++pass) {
#pragma unroll
      for (int n = 0; n < Config::tile_keys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = Scores::row(0, i), column = Scores::column(n, i);
          const int query = first_query + r * 16 + row, key = first_key + column;
          const bool is_valid = !is_partial || valid[i / 2].holds(key);
          float diagonal[diagonals > 0 ? diagonals : 1];
          gradients.add(scores.at[r][n].part[i] * scale, query, key, dp.at[r][n].part[i] * factor,
                        is_valid && pass == 0, diagonal);
          if constexpr (diagonals > 0) {
            terms[row * ParameterGradientsTiles<Config>::term_pitch + column] = is_valid ? diagonal[pass] : 0.0f;
          }
        }
      }
      if constexpr (diagonals > 0) {
        __syncwarp();
        add_diagonals<Config>(gradients, pass, terms, first_query + r * 16, first_key);
        __syncwarp();
      }
    }
  }
}

template <class Config>
__device__ void parameter_gradients_tile(const CommonArguments& arguments, const Work& work, unsigned shared) {
  using Tiles = ParameterGradientsTiles<Config>;
  using Storage = typename Config::Element::Storage;
  constexpr int row_tiles = Tiles::row_tiles;
  const Params& params = arguments.params;
  if (!is_in_batch(arguments, work.batch_begin)) return;  // rows without a sequence
  const auto pair = [&] { return pair_of(work); };
  const int first_query = work.tile * Config::tile_queries;
  const typename Tiles::QueryTile query_tile{shared};
  const typename Tiles::GradOutputTile grad_output_tile{shared + Tiles::query_bytes};
  const typename Tiles::Stream stream(
      params, work.batch_begin, work.key_head, work.keys, grad_output_tile.base + Tiles::grad_output_bytes,
      Config::Mask::of(params, pair()).key_tiles(first_query, Config::tile_queries, Config::tile_keys));

  load_rows<Tiles::threads, Config::aligned, Config::tile_queries, Config::head_dim>(
      query_tile,
      static_cast<const Storage*>(params.query.data) +
          Config::Layout::offset_of(params.query, work.queries, work.batch_begin, first_query, work.head),
      params.query.row_stride, work.queries.count - first_query);
  load_rows<Tiles::threads, Config::aligned, Config::tile_queries, Config::head_dim_v>(
      grad_output_tile,
      static_cast<const Storage*>(params.grad_output.data) +
          Config::Layout::offset_of(params.grad_output, work.queries, work.batch_begin, first_query, work.head),
      params.grad_output.row_stride, work.queries.count - first_query);
  stream.start();

  const int warp_row = warp_index() * Tiles::warp_rows;
  const float scale = static_cast<float>(params.scale);
  const float factor = Config::Epilogue::scale_of(arguments, pair());
  // A query after the sequence does not make a tile of keys partial. Its dP is 0, but what f reads there may be NaN.
  const bool has_all_queries = first_query + warp_row + Tiles::warp_rows <= work.queries.count;
  extern __shared__ __align__(16) unsigned char shared_memory[];
  auto* const terms = reinterpret_cast<float*>(shared_memory + Tiles::shared_bytes - Config::warps * Tiles::term_bytes +
                                               warp_index() * Tiles::term_bytes);
  auto gradients = Config::Gradients::of(params, pair());
  if constexpr (Config::Gradients::has_histogram) {
    if (gradients.span() <= Tiles::term_bytes / 4) {
      gradients.histogram = terms;
      for (int i = lane_index(); i < gradients.span(); i += 32) terms[i] = 0.0f;
      __syncwarp();
    }
  }
  for (int position = 0; position < stream.tiles.size(); ++position) {
    stream.advance(position);
    if (first_query + warp_row >= work.queries.count) continue;
    const int first_key = stream.first_key(position);
    Accumulator<row_tiles, Config::tile_keys> scores;
    Accumulator<row_tiles, Config::tile_keys> dp;
    multiply_rows(scores, query_tile.from_row(warp_row), stream.key_tile(position));
    multiply_rows(dp, grad_output_tile.from_row(warp_row), stream.value_tile(position));
    if (has_all_queries && stream.tiles.is_full(position)) {
      add_gradients<Config, false>(gradients, scores, dp, terms, scale, factor, params, pair(), first_query + warp_row,
                                   first_key);
    } else {
      add_gradients<Config, true>(gradients, scores, dp, terms, scale, factor, params, pair(), first_query + warp_row,
                                  first_key);
    }
  }
  wait_for_copies<0>();
  if (Config::Gradients::has_histogram && gradients.histogram != nullptr) {
    __syncwarp();
    for (int i = lane_index(); i < gradients.span(); i += 32) {
      if (terms[i] != 0.0f) gradients.flush(i, terms[i]);
    }
  }
  gradients.end();
}

template <class Config>
__device__ void parameter_gradients(const CommonArguments& arguments) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  for_all_work(arguments, query_owner<Config>(arguments, arguments.params.batch), true, [&](const Work& work) {
    parameter_gradients_tile<Config>(arguments, work, shared_address(shared_memory));
  });
}

}  // namespace gdpa::portable
