// Loads of a dense bias into the L1 cache, one step of backward ahead of the scores that read it.
#pragma once

#include "common/memory.cuh"
#include "hopper/warpgroup.cuh"

namespace gdpa::hopper {

/// Begins to load the elements of a tile whose rows are keys: `queries` queries from `first_query`, and the 16 keys of
/// the warp from `first_key` of its warpgroup. A lane loads the line of a query, because the keys of a query are
/// adjacent in memory.
template <int queries, class Bias>
__device__ __forceinline__ void prefetch_bias_tile(const Bias& bias, int first_query, int first_key) {
  const int key = min(first_key + static_cast<int>(thread_in_warpgroup() / 32) * 16, bias.last_tile_key());
#pragma unroll
  for (int i = 0; i < queries; i += 32) prefetch_line(bias.tile_row(first_query + lane_index() + i) + key);
}

}  // namespace gdpa::hopper
