// The gradient of a 16-bit tensor such as bias[b, h, i, j], in which each element has one term. Backward stores the
// rounded terms in the gradient, so that no sum in fp32 exists: Config::Gradients of backward, and the kernel that
// completes the gradient.
//
// Sequences may be longer than the axes of the tensor. A query beyond its axis has the last element of the axis, and so
// has a key. These last elements then have several terms. Their sums are in fp32 (BorderSums).
//
// Backward stores the elements of the tiles that it visits. The kernel complete_terms writes zeros to the other
// elements, and rounds the sums of the last elements of the axes.
#pragma once

#include "common/lanes.cuh"
#include "common/parameter_sum.cuh"
#include "common/sequence.cuh"
#include "common/types.cuh"
#include "common/work.cuh"
#include "hopper/arguments.cuh"
#include "pipeline/warpgroup.cuh"

namespace gdpa::hopper {

/// The sums of the last elements of the axes, of one batch entry and head: the sums of the last query, one for each
/// key, and then those of the last key, one for each query. The axes of the gradient are batch entry, head, query and
/// key.
struct BorderSums {
  FloatSum* sums;
  int query_count, key_count;  ///< of the axes
  int first_query, first_key;  ///< from which the elements have several terms; beyond the sequence if none has
  int length_q, length_k;      ///< of the sequences

  __device__ __forceinline__ BorderSums(const Params& params, int tensor, const SequencePair& pair) {
    const BoundTensor& gradient = params.grad_parameters[tensor];
    sums = static_cast<FloatSum*>(params.parameter_sums.borders) +
           (pair.b * params.heads_q + pair.head) * (gradient.sizes[2] + gradient.sizes[3]);
    query_count = static_cast<int>(gradient.sizes[2]);
    key_count = static_cast<int>(gradient.sizes[3]);
    length_q = pair.length_q;
    length_k = pair.length_k;
    first_query = length_q > query_count ? query_count - 1 : length_q;
    first_key = length_k > key_count ? key_count - 1 : length_k;
  }

  __device__ __forceinline__ bool share_query() const { return first_query < length_q; }
  __device__ __forceinline__ bool share_key() const { return first_key < length_k; }

  /// Whether some score before these ends of a tile may have an element of several terms.
  __device__ __forceinline__ bool meet(int query_end, int key_end) const {
    return (share_query() && query_end > first_query) || (share_key() && key_end > first_key);
  }

  /// The sum of the element of the last query and this key, which may be beyond its axis.
  __device__ __forceinline__ FloatSum& of_last_query(int key) const { return sums[min(key, key_count - 1)]; }
  /// The sum of the element of the last key and this query, which is before first_query.
  __device__ __forceinline__ FloatSum& of_last_key(int query) const { return sums[key_count + query]; }
};

/// Config::Gradients of a function g(s + e), where the terms of the tensor in e are dS times a factor. `Tensor` is the
/// generated struct of src/codegen/gradients.h. The gradient is contiguous, and its axes are batch entry, head,
/// query and key. The number of keys is even. A warp has the terms of 16 keys and 64 queries.
template <class Tensor>
struct StoredTerms {
  using Element = typename Tensor::Element;
  static constexpr bool are_of_numbers = false, are_of_scores = true;
  static constexpr int keys = 16, queries = backward_tile_queries, terms = queries / 2;

  /// The sequences of a batch entry and head.
  struct Tensors {
    const Params& params;
    SequencePair pair;

    __device__ __forceinline__ Tensors(const Params& params_, const SequencePair& pair_)
        : params(params_), pair(pair_) {}
  };

  __device__ __forceinline__ void clear() {}
  template <class TileInputs>
  __device__ __forceinline__ void note(const TileInputs& /*inputs*/) {}
  __device__ __forceinline__ void end(const Tensors&, float) {}

  /// Stores the terms of a warp. `key` is its first row, and `query` its first column. Invalid scores have a term of 0.
  /// Multiplies ds by the factor in place: registers do not suffice for terms and products.
  template <class MakeInputs>
  __device__ __forceinline__ static void add(float (&ds)[terms], MakeInputs /*inputs*/, const Tensors& tensors,
                                             int query, int key, float factor) {
#pragma unroll
    for (float& term : ds) term *= factor * Tensor::factor;
    const BorderSums borders(tensors.params, Tensor::tensor, tensors.pair);
    if (borders.meet(query + queries, key + keys)) add_to(borders, ds, query, key);
    store(ds, tensors, query, key);
  }

 private:
  /// Reads the special register, so that values computed from it occupy no registers between their uses.
  __device__ __forceinline__ static int lane() { return static_cast<int>(thread_in_warpgroup() % 32); }

  /// Adds terms to their sums, if their elements have several terms.
  __device__ __forceinline__ static void add_to(const BorderSums& borders, const float (&ds)[terms], int query,
                                                int key) {
    const int row = key + lane() / 4, column = query + lane() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int of_key = row + half * 8;
      float of_last_query = 0.0f;
#pragma unroll
      for (int i = 0; i < terms; ++i) {
        if (i / 2 % 2 != half) continue;
        const int of_query = column + i / 4 * 8 + i % 2;
        if (of_query >= borders.first_query) {
          of_last_query += ds[i];
        } else if (of_key >= borders.first_key) {
          borders.of_last_key(of_query).add(ds[i]);
        }
      }
      if (of_last_query != 0.0f) borders.of_last_query(of_key).add(of_last_query);
    }
  }

  /// Stores each term if its indices are on the axes. A lane has two adjacent queries of a key. 8 x 8 terms are
  /// transposed, so that a lane stores two adjacent keys of a query. In an element with several terms, this function
  /// stores one of the terms, and complete_terms() overwrites it.
  __device__ __forceinline__ static void store(const float (&ds)[terms], const Tensors& tensors, int query, int key) {
    const BoundTensor& gradient = tensors.params.grad_parameters[Tensor::tensor];
    const int row = query + lane() / 4, column = key + lane() % 4 * 2;
    const int query_count = static_cast<int>(gradient.sizes[2]), key_count = static_cast<int>(gradient.sizes[3]);
    const int64_t slice = tensors.pair.b * gradient.sizes[1] + tensors.pair.head;
    const int64_t first = (slice * query_count + row) * key_count + column;
    auto* of_row = static_cast<typename Element::Storage*>(gradient.data) + first;
#pragma unroll
    for (int i = 0; i < terms; i += 4) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* const pair = ds + i + half * 2;
        const unsigned of_query = transpose_matrix(Element::pack(pair[0], pair[1]));
        const bool exists = row + i / 4 * 8 < query_count && column + half * 8 < key_count;
        if (exists) *reinterpret_cast<unsigned*>(of_row + half * 8) = of_query;
      }
      of_row += 8 * key_count;
    }
  }
};

// --- the kernel complete_terms ---------------------------------------------------------------------------------------

template <class Config>
using complete_terms_cta = CtaShape<256>;

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

/// Completes a gradient. A CTA takes the rows of one query tile, of one batch entry and head, at a time. It writes
/// whole rows, because writes of pieces of rows are slow. Sequences may have very different numbers of elements without
/// a term, so a CTA does not take a whole matrix.
///
/// Config: using Layout, Mask, and Element, of the gradient; int tensor; int tile_queries, tile_keys, of backward.
///
/// Launch: grid any number of CTAs, best several for each multiprocessor.
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

}  // namespace gdpa::hopper
