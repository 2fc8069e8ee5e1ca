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
// The registers are added to the sums in global memory at the end of the tile. common/parameter_terms.cuh has the sums
// of a warp, common/parameter_sum.cuh the types of the sums in global memory, and round_parameters.cuh the kernel that
// rounds these sums into the gradients.
//
// Launch: grid as in schedule.cuh, queries own the work; block parameter_gradients_threads<Config>; dynamic shared
//         memory parameter_gradients_shared_bytes<Config>. params.grad_parameters are the sums, cleared before.
//
// Config: struct with
//     using Element, Gradients;                 types.cuh; src/codegen/gradients.h
//     using Mask, Layout, Epilogue;             window_mask.cuh, packed_layout.cuh, scale_epilogue.cuh
//     int head_dim, head_dim_v;                 multiples of 8, at most 256
//     int tile_queries, tile_keys;              multiples of 16 * warps and of 16
//     int warps, stages, ctas;                  warps along the queries
//     int column_warps;                         1
//     bool aligned;                             every row of every operand begins at a multiple of 16 bytes
#pragma once

#include "common/parameter_terms.cuh"
#include "portable/key_stream.cuh"
#include "portable/schedule.cuh"

namespace gdpa::portable {

template <class Config>
struct ParameterGradientsTiles {
  using Stream = KeyStream<Config>;
  using QueryTile = typename Stream::KeyTile;
  using GradOutputTile = typename Stream::ValueTile;
  static constexpr int threads = Stream::threads;
  static_assert(Config::column_warps == 1, "a warp has all columns of its rows");
  static constexpr int warp_rows = Config::tile_queries / Config::warps;
  static constexpr int row_tiles = warp_rows / 16;
  static constexpr int query_bytes = QueryTile::bytes(Config::tile_queries);
  static constexpr int grad_output_bytes = GradOutputTile::bytes(Config::tile_queries);
  using Terms = WarpTerms<Config::tile_keys>;
  static constexpr int shared_bytes = query_bytes + grad_output_bytes + Stream::bytes + Config::warps * Terms::bytes;
};

template <class Config>
constexpr int parameter_gradients_threads = ParameterGradientsTiles<Config>::threads;
template <class Config>
constexpr int parameter_gradients_shared_bytes = ParameterGradientsTiles<Config>::shared_bytes;

template <class Config>
__device__ void parameter_gradients_tile(const CommonArguments& arguments, const Work& work, unsigned shared) {
  using Tiles = ParameterGradientsTiles<Config>;
  using Storage = typename Config::Element::Storage;
  constexpr int row_tiles = Tiles::row_tiles;
  const Params& params = arguments.params;
  if (!is_in_batch(arguments, work.batch_begin)) return;  // rows without a sequence
  const auto pair = [&] { return pair_of(arguments.params, work); };
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
          Config::Layout::offset_of(params.grad_output,
                                    Config::Layout::output_rows(params, work.queries, work.batch_begin),
                                    work.batch_begin, first_query, work.head),
      params.grad_output.row_stride, work.queries.count - first_query);
  stream.start();

  const int warp_row = warp_index() * Tiles::warp_rows;
  const float scale = static_cast<float>(params.scale);
  const float factor = Config::Epilogue::scale_of(arguments, pair());
  extern __shared__ __align__(16) unsigned char shared_memory[];
  const typename Tiles::Terms terms{
      reinterpret_cast<float*>(shared_memory + Tiles::shared_bytes - Config::warps * Tiles::Terms::bytes) +
      warp_index() * Tiles::Terms::floats};
  terms.clear();
  auto gradients = Config::Gradients::of(params, pair());
  terms.begin(gradients);
  for (int position = 0; position < stream.tiles.size(); ++position) {
    stream.advance(position);
    if (first_query + warp_row >= work.queries.count) continue;
    const int first_key = stream.first_key(position);
    Accumulator<row_tiles, Config::tile_keys> scores;
    Accumulator<row_tiles, Config::tile_keys> dp;
    multiply_rows(scores, query_tile.from_row(warp_row), stream.key_tile(position));
    multiply_rows(dp, grad_output_tile.from_row(warp_row), stream.value_tile(position));
    const auto mask = Config::Mask::of(params, pair());
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) {
      const auto score = [&](int n, int i) { return scores.at[r][n].part[i] * scale; };
      const auto grad_p = [&](int n, int i) { return dp.at[r][n].part[i] * factor; };
      add_terms(gradients, terms, mask, stream.tiles.is_full(position), first_query + warp_row + r * 16, first_key,
                score, grad_p);
    }
  }
  wait_for_copies<0>();
  terms.end(gradients);
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
