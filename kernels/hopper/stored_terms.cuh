// Backward: the gradient of a 16-bit tensor such as bias[b, h, i, j], in which each element has one term. A consumer
// stores the rounded terms in the gradient, so that no sum in fp32 exists. Sequences may be longer than the axes of the
// tensor. The last elements of the axes then have several terms. Their sums are in fp32 (common/border_sums.cuh).
#pragma once

#include "common/border_sums.cuh"
#include "common/lanes.cuh"
#include "common/types.cuh"
#include "hopper/backward_storage.cuh"

namespace gdpa::hopper {

/// Config::Gradients of a function g(s + e), where the terms of the tensor in e are dS times a factor. `Tensor` is the
/// generated struct of src/codegen/cuda_gradients.h. The gradient is contiguous, and its axes are batch entry, head,
/// query and key. The number of keys is even. A warp has the terms of 16 keys and 64 queries.
template <class Tensor>
struct StoredTerms {
  using Element = typename Tensor::Element;
  static constexpr bool are_of_numbers = false, are_of_scores = true, have_lookup = false;
  static constexpr int keys = 16, queries = backward_tile_queries, terms = queries / 2;

  /// The sequences of a batch entry and head.
  struct Tensors {
    const Params& params;
    SequencePair pair;

    __device__ __forceinline__ Tensors(const Params& params_, const SequencePair& pair_)
        : params(params_), pair(pair_) {}
  };

  __device__ __forceinline__ void clear() {}
  __device__ __forceinline__ void end(const Tensors&, float) {}

  /// Stores the terms of a warp. `key` is its first row, and `query` its first column. Invalid scores have a term of 0.
  /// Multiplies ds by the factor in place: registers do not suffice for terms and products.
  __device__ __forceinline__ static void add(float (&ds)[terms], const Tensors& tensors, int query, int key,
                                             float factor) {
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

}  // namespace gdpa::hopper
