// dQ, summed in one order without atomic operations, for deterministic mode; backward.cuh then computes dK and dV only.
// Both kernels together compute seven products, where the default computes five.
//
// A CTA owns one tile of queries of one head and iterates over its key tiles (query_gradients.cuh):
//
//     dS = dP * f'(scale * S)  ->  registers, as the A operand
//     dQ += dS K               ->  registers
//
// Where the accumulators of dQ do not fit in the registers of warps that have all columns (d > 128), column_warps split
// the columns. Each of these warps computes all scores of its rows.
//
// Where the batch shares Q, it is cut into splits. A CTA iterates over one split and writes an fp32 partial result.
// reduce.cuh adds the partial results in order.
//
// Launch: grid as in schedule.cuh, queries own the work. Workspace: the partial results
//         grad_query_accumulator where queries_shared, not cleared.
//
// Config: struct of key_stream.cuh with
//     using Activation;                         the backward functions of src/codegen/function.h
//     bool queries_shared;
#pragma once

#include "common/score_scale.cuh"
#include "portable/query_gradients.cuh"
#include "portable/scores.cuh"

namespace gdpa::portable {

template <class Config>
using backward_query_cta = QueryGradientsTiles<Config>;

/// Computes dS of one tile of keys, rounded to the element type.
template <class Config, bool is_partial, class Scores, class Gradients>
__device__ void differentiate_scores(const Scores& scores, const Scores& dp, Gradients& ds, float factor,
                                     const Params& params, const SequencePair& pair, int first_query, int first_key) {
  WarpScores<Config, FragmentRows::queries, is_partial, Scores::row_tiles, Config::tile_keys> of_warp(
      params, pair, first_query, first_key);
  Gradients p;  // not used
  const float scale = score_scale<typename Config::Activation>(static_cast<float>(params.scale));
  of_warp.template differentiate<Config::queries_shared>(0, scores, dp, p, ds, scale, factor);
}

/// Adds to dQ the products with the keys of batch entry b.
template <class Config, class Gradient>
__device__ void add_entry(const CommonArguments& arguments, const Work& work, int64_t b, unsigned shared,
                          Gradient& grad_query) {
  using Stream = KeyStream<Config>;
  const Params& params = arguments.params;
  const Rows queries = Config::queries_shared ? queries_of<typename Config::Layout>(arguments, b) : work.queries;
  const Rows keys = Config::queries_shared ? keys_of<typename Config::Layout>(arguments, b) : work.keys;
  const SequencePair pair = pair_in_batch(params, b, work.head, queries.count, keys.count);
  const int first_query = work.tile * Config::tile_queries, warp_query = first_query + Stream::warp_row();
  const float factor = Config::queries_shared ? Config::Epilogue::scale_of(arguments, pair) : 1.0f;
  const auto add_tile = [&](const Stream& stream, int position, const auto& scores, const auto& dp) {
    Fragments<typename Config::Element, Stream::row_tiles, Config::tile_keys> ds;
    const int first_key = stream.first_key(position);
    if (stream.tiles.is_full(position)) {
      differentiate_scores<Config, false>(scores, dp, ds, factor, params, pair, warp_query, first_key);
    } else {
      differentiate_scores<Config, true>(scores, dp, ds, factor, params, pair, warp_query, first_key);
    }
    multiply_fragments(grad_query, ds, stream.key_tile(position).from(0, Stream::column_warp() * Stream::warp_columns));
  };
  __syncthreads();  // every warp has read the previous entry
  visit_key_tiles<Config>(
      params, work, b, queries, keys,
      Config::Mask::of(params, pair).key_tiles(first_query, Config::tile_queries, Config::tile_keys), shared, add_tile);
}

template <class Config>
__device__ void backward_query_tile(const CommonArguments& arguments, const Work& work, unsigned shared) {
  using Stream = KeyStream<Config>;
  const Params& params = arguments.params;
  Accumulator<Stream::row_tiles, Stream::warp_columns> grad_query;
  for (int64_t b = work.batch_begin; b < work.batch_end; ++b) {
    add_entry<Config>(arguments, work, b, shared, grad_query);
  }
  __syncthreads();  // no warp reads Q any more, and its copy is complete: dQ is staged there
  // If the batch shares Q, out_scale has multiplied dS.
  const float scale = static_cast<float>(params.scale);
  const float factor =
      Config::queries_shared ? scale : scale * Config::Epilogue::scale_of(arguments, pair_of(params, work));
  store_gradient<Config, Stream::threads, Config::tile_queries, Config::head_dim, Config::queries_shared>(
      grad_query, factor, typename Stream::KeyTile{shared}, params.grad_query, arguments.grad_query_accumulator, work,
      work.queries, Stream::warp_row(), Stream::column_warp() * Stream::warp_columns);
}

template <class Config>
__device__ void backward_query(const CommonArguments& arguments) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  const int64_t entries = Config::queries_shared ? arguments.splits : arguments.params.batch;
  for_all_work(arguments, query_owner<Config>(arguments, entries), true,
               [&](const Work& work) { backward_query_tile<Config>(arguments, work, shared_address(shared_memory)); });
}

}  // namespace gdpa::portable
