// The sums of the last elements of a gradient's axes. Most elements of the gradient have one term, which backward
// stores. A query beyond its axis has the last element of the axis, and so has a key. These last elements have several
// terms, and their sums are in fp32.
//
// Each batch entry and head has the sums of its last query, one for each key, and then those of its last key, one for
// each query. The axes of the gradient are batch entry, head, query and key.
#pragma once

#include "common/parameter_sum.cuh"
#include "common/sequence.cuh"

namespace gdpa {

/// The sums of one batch entry and head.
struct BorderSums {
  FloatSum* sums;
  int query_count, key_count;  ///< of the axes
  int first_query, first_key;  ///< from which the elements have several terms; beyond the sequence if none has
  int length_q, length_k;      ///< of the sequences

  __device__ __forceinline__ static int64_t count_of(const BoundTensor& gradient) {
    return gradient.sizes[2] + gradient.sizes[3];
  }

  __device__ __forceinline__ BorderSums(const Params& params, int tensor, const SequencePair& pair) {
    const BoundTensor& gradient = params.grad_parameters[tensor];
    sums = static_cast<FloatSum*>(params.parameter_sums.borders) +
           (pair.b * params.heads_q + pair.head) * count_of(gradient);
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

}  // namespace gdpa
