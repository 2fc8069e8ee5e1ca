// The valid range of a partial tile of backward, whose scores a consumer holds transposed. After f, P is selected to 0
// outside the range for any value of f. dS is selected too, except in backward_consumer.cuh with tiles of 64 queries,
// which selects f'. dS is then 0 except for gradients that are not finite.
#pragma once

#include "common/fragment_columns.cuh"
#include "hopper/arguments.cuh"
#include "pipeline/warpgroup.cuh"

namespace gdpa::hopper {

/// The query and the key of a score.
struct ScoreIndex {
  int query;
  int key;
};

/// The first score of a thread, for 64 keys from `first_key` on and queries from `first_query` on.
__device__ __forceinline__ ScoreIndex score_index(int first_query, int first_key) {
  // The warp is uniform, because a vector register with the row would be occupied while the function runs. An exact
  // function would then spill. It is read again at each call, because stored terms of a gradient would spill too.
  const auto thread = static_cast<int>(thread_in_warpgroup()), lane = thread % 32;
  return {first_query + lane % 4 * 2, first_key + broadcast_lane_0(thread / 32) * 16 + lane / 4};
}

/// The valid queries of 64 queries for the two keys of a thread, of the 64 keys from `first_key` on. The range is
/// relative to the first query of the thread.
template <class Mask>
struct ValidQueries {
  using OfKeys = typename FragmentOf<8, Mask::queries_are_range>::Type;

  OfKeys of_keys;

  __device__ __forceinline__ ValidQueries(const Mask& mask, int first_key, int first_query) {
    const ScoreIndex first = score_index(first_query, first_key);
    of_keys = mask.template columns<OfKeys>(first.key, first.query);
  }
  /// Whether accumulator element i is valid.
  __device__ __forceinline__ bool holds(int i) const { return of_keys.holds(i / 2 % 2, i / 4 * 8 + i % 2); }

  /// Selects 0 for invalid elements of P of 64 queries: an operand of 16 queries for each step.
  __device__ __forceinline__ void mask(unsigned (*p)[4]) const {
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      unsigned& pair = p[i / 8][i % 8 / 2];
      if (!holds(i)) pair &= 0xffff0000u;
      if (!holds(i + 1)) pair &= 0x0000ffffu;
    }
  }
  /// Selects `of_invalid` for invalid elements of numbers of 64 queries.
  template <int count>
  __device__ __forceinline__ void mask(float (&numbers)[count], float of_invalid = 0.0f) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (!holds(i)) numbers[i] = of_invalid;
    }
  }
};

}  // namespace gdpa::hopper
