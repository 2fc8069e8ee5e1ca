// Rounds the sums of the last elements of a gradient's axes (common/border_sums.cuh). Backward has stored the other
// elements.
//
// Launch: grid any number of CTAs, best one for each batch entry and head; block round_borders_threads<Config>; no
//         shared memory.
#pragma once

#include "common/border_sums.cuh"
#include "common/types.cuh"
#include "common/work.cuh"
#include "portable/arguments.cuh"

namespace gdpa::portable {

template <class Config>
constexpr int round_borders_threads = 256;
template <class Config>
constexpr int round_borders_shared_bytes = 0;

/// Config: using Layout, and Element, of the gradient; int tensor.
template <class Config>
__device__ void round_borders(const RoundBordersArguments& arguments) {
  using Element = typename Config::Element;
  const Params& params = arguments.params;
  const BoundTensor& gradient = params.grad_parameters[Config::tensor];
  for (int64_t slice = blockIdx.x; slice < params.batch * params.heads_q; slice += gridDim.x) {
    const int64_t b = slice / params.heads_q;
    const SequencePair pair{b, static_cast<int>(slice % params.heads_q),
                            queries_of<typename Config::Layout>(arguments, b).count,
                            keys_of<typename Config::Layout>(arguments, b).count};
    const BorderSums borders(params, Config::tensor, pair);
    auto* const elements = static_cast<typename Element::Storage*>(gradient.data) +
                           (b * gradient.sizes[1] + pair.head) * gradient.sizes[2] * gradient.sizes[3];
    const auto round = [&](int64_t query, int key, const FloatSum& sum) {
      elements[query * borders.key_count + key] = Element::rounded(sum.sum);
    };
    const auto first = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    if (borders.share_query()) {
      for (int key = first; key < borders.key_count; key += threads) {
        round(borders.query_count - 1, key, borders.of_last_query(key));
      }
    }
    if (borders.share_key()) {
      for (int query = first; query < borders.first_query; query += threads) {
        round(query, borders.key_count - 1, borders.of_last_key(query));
      }
    }
  }
}

}  // namespace gdpa::portable
