// Completes a gradient in which backward has stored terms (hopper/stored_terms.cuh). Backward stores the elements of the
// tiles that it visits. This kernel writes zeros to the other elements. It then rounds the sums of the last elements of
// the axes, which may have several terms (common/border_sums.cuh).
//
// Launch: grid any number of CTAs, best one for each pair of indices of the first two axes; block complete_terms_threads<Config>;
//         no shared memory.
#pragma once

#include "common/border_sums.cuh"
#include "common/types.cuh"
#include "common/work.cuh"
#include "portable/arguments.cuh"

namespace gdpa::portable {

template <class Config>
constexpr int complete_terms_threads = 256;
template <class Config>
constexpr int complete_terms_shared_bytes = 0;

/// The elements of a gradient for one index of its first axis and one of its second axis: a matrix of queries and keys.
/// Its rows have an even number of elements and begin at multiples of 4 bytes.
template <class Element>
struct TermMatrix {
  using Storage = typename Element::Storage;

  Storage* elements;
  int query_count, key_count;

  __device__ Storage* at(int query, int key) const { return elements + int64_t{query} * key_count + key; }

  /// Writes zeros to the keys [key, key_end) of the queries [query, query_end), as far as they exist. `key` and
  /// `key_end` are even. By all warps of the CTA, which take one query each.
  __device__ void write_zeros(int query, int query_end, int key, int key_end) const {
    const int pairs = (min(key_end, key_count) - key) / 2, last = min(query_end, query_count);
    const auto warp = static_cast<int>(threadIdx.x / 32), warps = static_cast<int>(blockDim.x / 32);
    for (int row = query + warp; row < last; row += warps) {
      auto* const of_row = reinterpret_cast<unsigned*>(at(row, key));
      for (int pair = static_cast<int>(threadIdx.x % 32); pair < pairs; pair += 32) of_row[pair] = 0;
    }
  }
};

/// Writes zeros to the elements of tiles that backward does not visit. The query tiles of a list are in ascending order.
template <class Config>
__device__ void write_other_terms(const TermMatrix<typename Config::Element>& matrix, const Params& params,
                                  const SequencePair& pair) {
  for (int key = 0; key < matrix.key_count; key += Config::tile_keys) {
    const int key_end = key + Config::tile_keys;
    int query = 0;  // all elements of earlier queries are stored
    if (key < pair.length_k) {
      const auto tiles = Config::Mask::of(params, pair).query_tiles(key, Config::tile_keys, Config::tile_queries);
      for (int i = 0; i < tiles.size() && query < matrix.query_count; ++i) {
        const int first = tiles.first_row + tiles.row_offset(i, Config::tile_queries);
        matrix.write_zeros(query, first, key, key_end);
        query = first + Config::tile_queries;
      }
    }
    matrix.write_zeros(query, matrix.query_count, key, key_end);
  }
}

/// Rounds the sums of the elements that have several terms.
template <class Config>
__device__ void round_borders(const TermMatrix<typename Config::Element>& matrix, const BorderSums& borders) {
  const auto round = [&](int query, int key, const FloatSum& sum) {
    *matrix.at(query, key) = Config::Element::rounded(sum.sum);
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

/// Config: using Layout, Mask, and Element, of the gradient; int tensor; int tile_queries, tile_keys, of backward.
template <class Config>
__device__ void complete_terms(const CompleteTermsArguments& arguments) {
  using Layout = typename Config::Layout;
  const Params& params = arguments.params;
  const BoundTensor& gradient = params.grad_parameters[Config::tensor];
  const auto query_count = static_cast<int>(gradient.sizes[2]), key_count = static_cast<int>(gradient.sizes[3]);
  for (int64_t at = blockIdx.x; at < gradient.sizes[0] * gradient.sizes[1]; at += gridDim.x) {
    const int64_t b = at / gradient.sizes[1];
    const auto head = static_cast<int>(at % gradient.sizes[1]);
    auto* const elements = static_cast<typename Config::Element::Storage*>(gradient.data);
    const TermMatrix<typename Config::Element> matrix{elements + at * query_count * key_count, query_count, key_count};
    if (b >= params.batch || head >= params.heads_q) {  // no score reads these elements
      matrix.write_zeros(0, query_count, 0, key_count);
      continue;
    }
    const SequencePair pair = pair_in_batch(params, b, head, queries_of<Layout>(arguments, b).count,
                                            keys_of<Layout>(arguments, b).count);
    write_other_terms<Config>(matrix, params, pair);
    __syncthreads();
    round_borders<Config>(matrix, BorderSums(params, Config::tensor, pair));
  }
}

}  // namespace gdpa::portable
