// Loads of a dense bias into the L1 cache, one step of backward ahead of the scores that read it.
#pragma once

#include "common/memory.cuh"
#include "hopper/warpgroup.cuh"

namespace gdpa::hopper {

/// Begins to load the elements of the bias that the scores of a warp read. These are `queries` queries, beginning with
/// `first_query`, and 16 keys. The keys of the warpgroup begin with `first_key`, and each warp has the next 16 of them.
/// A lane loads one cache line for each of its queries, because the keys of a query are adjacent in memory.
template <int queries, class Bias>
__device__ __forceinline__ void prefetch_bias_tile(const Bias& bias, int first_query, int first_key) {
  const int key = min(first_key + static_cast<int>(thread_in_warpgroup() / 32) * 16, bias.last_tile_key());
#pragma unroll
  for (int i = 0; i < queries; i += 32) prefetch_line(bias.tile_row(first_query + lane_index() + i) + key);
}

}  // namespace gdpa::hopper
