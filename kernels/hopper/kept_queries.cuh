// Which scores count, of those that a warpgroup of backward holds transposed: where a tile is cut by the mask or by the
// end of a sequence, weights are selected to 0 after f, whatever f gives. So is dS, but in backward_consumer.cuh with tiles of 64
// queries: f' is 0 there, and dS then, but for gradients that are not finite.
#pragma once

#include "common/sequence.cuh"
#include "hopper/arguments.cuh"
#include "hopper/warpgroup.cuh"

namespace gdpa::hopper {

/// Which of 64 queries count for a thread's two keys of the 64 from `first_key` on: less what an element's place adds.
struct KeptQueries {
  Kept of_key[2];

  __device__ __forceinline__ KeptQueries(const Mask& kept, const KeyTile& tile, int first_key, int first_query) {
    const MaskOfSequence mask{kept, tile.length_q, tile.length_k};
    const unsigned thread = fresh_thread_index(), lane = thread % 32;
    const int key = first_key + static_cast<int>(thread / 32 * 16 + lane / 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      of_key[half] = mask.column(key + half * 8);
      of_key[half].begin -= first_query + static_cast<int>(lane % 4 * 2);
    }
  }
  /// Of element i of the sums.
  __device__ __forceinline__ bool holds(int i) const { return of_key[i / 2 % 2].holds(i / 4 * 8 + i % 2); }

  /// Weights of 64 queries that do not count become 0, whatever they are: an operand of 16 queries a step.
  __device__ __forceinline__ void mask(unsigned (*weights)[4]) const {
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      unsigned& pair = weights[i / 8][i % 8 / 2];
      if (!holds(i)) pair &= 0xffff0000u;
      if (!holds(i + 1)) pair &= 0x0000ffffu;
    }
  }
  template <int count>
  __device__ __forceinline__ void mask(float (&numbers)[count]) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (!holds(i)) numbers[i] = 0.0f;
    }
  }
};

}  // namespace gdpa::hopper
