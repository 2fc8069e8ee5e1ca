// The gradients of the tensors that the function reads, on the tensor cores of any GPU since Ampere.
//
// dP is the gradient of P, so the gradient of an input of the function at one score is dP * df/dinput. The gradient of
// an element of a tensor is the sum over all scores that read the element. A CTA owns one tile of queries of one head
// and computes S and dP once more (query_gradients.cuh):
//
//     dP * df/dinput of each valid score  ->  a register, for a number of the head
//                                         ->  shared memory, for a read that depends only on i - j
//                                         ->  a histogram in shared memory, for a computed index of few elements
//                                         ->  the sum of the element in global memory, for another read
//
// The registers are added to the sums in global memory at the end of the tile. common/parameter_terms.cuh has the sums
// of a warp, common/parameter_sum.cuh the types of the sums in global memory, and round_parameters.cuh the kernel that
// rounds these sums into the gradients.
//
// Launch: grid as in schedule.cuh, queries own the work. params.grad_parameters are the sums, cleared
//         before.
//
// Config: struct of key_stream.cuh, without Inputs and with column_warps 1, with
//     using Gradients;                          src/codegen/gradients.h
#pragma once

#include "common/parameter_terms.cuh"
#include "portable/query_gradients.cuh"

namespace gdpa::portable {

template <class Config>
using parameter_gradients_cta =
    CtaShape<KeyStream<Config>::threads,
             QueryGradientsTiles<Config>::shared_bytes + Config::warps * WarpTerms<Config::tile_keys>::bytes>;

template <class Config>
__device__ void parameter_gradients_tile(const CommonArguments& arguments, const Work& work,
                                         unsigned char* shared_memory) {
  using Stream = KeyStream<Config>;
  using Terms = WarpTerms<Config::tile_keys>;
  static_assert(Config::column_warps == 1, "a warp has all columns of its rows");
  const Params& params = arguments.params;
  if (!is_in_batch(arguments, work.batch_begin)) return;  // rows without a sequence
  const auto pair = [&] { return pair_of(arguments.params, work); };
  const int first_query = work.tile * Config::tile_queries, warp_query = first_query + Stream::warp_row();
  const float scale = static_cast<float>(params.scale);
  const float factor = Config::Epilogue::scale_of(arguments, pair());
  const Terms terms{reinterpret_cast<float*>(shared_memory + QueryGradientsTiles<Config>::shared_bytes) +
                    warp_index() * Terms::floats};
  terms.clear();
  auto gradients = Config::Gradients::of(params, pair());
  terms.begin(gradients);
  const auto add_tile = [&](const Stream& stream, int position, const auto& scores, const auto& dp) {
    const auto mask = Config::Mask::of(params, pair());
#pragma unroll
    for (int r = 0; r < Stream::row_tiles; ++r) {
      const auto score = [&](int n, int i) { return scores.at[r][n].part[i] * scale; };
      const auto grad_p = [&](int n, int i) { return dp.at[r][n].part[i] * factor; };
      add_terms(gradients, terms, mask, stream.tiles.is_full(position), warp_query + r * 16, stream.first_key(position),
                score, grad_p);
    }
  };
  visit_key_tiles<Config>(
      params, work, work.batch_begin, work.queries, work.keys,
      Config::Mask::of(params, pair()).key_tiles(first_query, Config::tile_queries, Config::tile_keys),
      shared_address(shared_memory), add_tile);
  terms.end(gradients);
  gradients.end();
}

template <class Config>
__device__ void parameter_gradients(const CommonArguments& arguments) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  for_all_work(arguments, query_owner<Config>(arguments, arguments.params.batch), true,
               [&](const Work& work) { parameter_gradients_tile<Config>(arguments, work, shared_memory); });
}

}  // namespace gdpa::portable
