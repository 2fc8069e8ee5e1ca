// Completes a gradient in which backward has stored terms (hopper/stored_terms.cuh). Backward stores the elements of the
// tiles that it visits. This kernel writes zeros to the other elements. It then rounds the sums of the last elements of
// the axes, which may have several terms (common/border_sums.cuh).
//
// A CTA takes the rows of one query tile, of one batch entry and head, at a time. It writes whole rows, because writes
// of pieces of rows are slow. Sequences may have very different numbers of elements without a term, so a CTA does not
// take a whole matrix.
//
// Launch: grid any number of CTAs, best several for each multiprocessor; block complete_terms_threads<Config>; no
//         shared memory.
#pragma once

#include "common/border_sums.cuh"
#include "common/lanes.cuh"
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
};

/// Writes zeros to the elements of a row at the keys [begin, end) for which is_written(key) holds. `begin` is even, and
/// is_written() is the same for both keys of a pair that begins at an even key. The lanes of a warp call this function.
/// They write chunks of 16 bytes where possible.
template <class Element, class IsWritten>
__device__ void write_zeros(const TermMatrix<Element>& matrix, int query, int begin, int end, IsWritten is_written) {
  constexpr int chunk = 16 / Element::bytes, pair = 2;
  auto* const row = matrix.at(query, 0);
  const auto before = static_cast<int>(reinterpret_cast<unsigned long long>(row + begin) % 16) / Element::bytes;
  for (int key = begin - before + lane_index() * chunk; key < end; key += 32 * chunk) {
    if (key >= begin && key + chunk <= end && is_written(key) && is_written(key + chunk - pair)) {
      *reinterpret_cast<uint4*>(row + key) = {};
      continue;
    }
    for (int of_pair = max(key, begin); of_pair < min(key + chunk, end); of_pair += pair) {
      if (is_written(of_pair)) *reinterpret_cast<unsigned*>(row + of_pair) = 0;
    }
  }
}

/// Whether backward visits the tile of a key tile and of the query tile that begins with `query`. The query tiles of a
/// list are in ascending order.
template <class Config>
__device__ bool is_visited(const Params& params, const SequencePair& pair, int query, int key) {
  if (query >= pair.length_q || key >= pair.length_k) return false;
  const auto tiles = Config::Mask::of(params, pair).query_tiles(key, Config::tile_keys, Config::tile_queries);
  int begin = 0, end = tiles.size();
  while (begin < end) {  // the first tile that does not begin before the query
    const int middle = (begin + end) / 2;
    const int first = tiles.first_row + tiles.row_offset(middle, Config::tile_queries);
    if (first < query) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin < tiles.size() && tiles.first_row + tiles.row_offset(begin, Config::tile_queries) == query;
}

/// Writes zeros to the elements of a query tile in tiles that backward does not visit. By all warps of the CTA, which
/// take one row each.
template <class Config>
__device__ void write_other_terms(const TermMatrix<typename Config::Element>& matrix, const Params& params,
                                  const SequencePair& pair, int query) {
  // write_zeros() tests only the first and the last pair of a chunk.
  static_assert(Config::tile_keys * Config::Element::bytes >= 16, "a chunk has elements of at most two key tiles");
  constexpr int key_tiles = 32;  // of a pass: one for each lane
  const int warp = static_cast<int>(threadIdx.x) / 32, warps = static_cast<int>(blockDim.x) / 32;
  const int query_end = min(query + Config::tile_queries, matrix.query_count);
  for (int begin = 0; begin < matrix.key_count; begin += key_tiles * Config::tile_keys) {
    const int end = min(begin + key_tiles * Config::tile_keys, matrix.key_count);
    const int key = begin + lane_index() * Config::tile_keys;
    const unsigned written = __ballot_sync(0xffffffffu, key < end && !is_visited<Config>(params, pair, query, key));
    if (written == 0) continue;
    for (int row = query + warp; row < query_end; row += warps) {
      write_zeros(matrix, row, begin, end,
                  [&](int of_key) { return (written >> (of_key - begin) / Config::tile_keys & 1) != 0; });
    }
  }
}

/// Rounds the sums of those elements of a query tile that have several terms.
template <class Config>
__device__ void round_borders(const TermMatrix<typename Config::Element>& matrix, const BorderSums& borders,
                              int query) {
  const auto round = [&](int of_query, int key, const FloatSum& sum) {
    *matrix.at(of_query, key) = Config::Element::rounded(sum.sum);
  };
  const auto thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int query_end = min(query + Config::tile_queries, borders.query_count);
  if (borders.share_query() && query_end == borders.query_count) {
    for (int key = thread; key < borders.key_count; key += threads) {
      round(borders.query_count - 1, key, borders.of_last_query(key));
    }
  }
  if (borders.share_key()) {
    for (int of_query = query + thread; of_query < min(query_end, borders.first_query); of_query += threads) {
      round(of_query, borders.key_count - 1, borders.of_last_key(of_query));
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
  const int64_t query_tiles = (query_count + Config::tile_queries - 1) / Config::tile_queries;
  for (int64_t tile = blockIdx.x; tile < gradient.sizes[0] * gradient.sizes[1] * query_tiles; tile += gridDim.x) {
    const int64_t at = tile / query_tiles, b = at / gradient.sizes[1];
    const auto head = static_cast<int>(at % gradient.sizes[1]);
    const int query = static_cast<int>(tile % query_tiles) * Config::tile_queries;
    auto* const elements = static_cast<typename Config::Element::Storage*>(gradient.data);
    const TermMatrix<typename Config::Element> matrix{elements + at * query_count * key_count, query_count, key_count};
    if (b >= params.batch || head >= params.heads_q) {  // no score reads these elements
      write_other_terms<Config>(matrix, params, {b, head, 0, 0, 0, 0}, query);
      continue;
    }
    const SequencePair pair = pair_in_batch(params, b, head, queries_of<Layout>(arguments, b).count,
                                            keys_of<Layout>(arguments, b).count);
    write_other_terms<Config>(matrix, params, pair, query);
    __syncthreads();
    round_borders<Config>(matrix, BorderSums(params, Config::tensor, pair), query);
  }
}

}  // namespace gdpa::portable
