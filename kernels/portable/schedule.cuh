// The tile scheduler of the portable kernels. The grid may have any number of CTAs: CTA i computes the slots i,
// i + gridDim, ... of the tile order in common/work.cuh. With as many CTAs as slots, heads * (packed rows / tile +
// batch + 2) for a jagged side, the hardware starts a CTA whenever another one ends, which balances sequences of any
// lengths.
#pragma once

#include "common/work.cuh"
#include "portable/arguments.cuh"

namespace gdpa::portable {

/// Calls compute(work) for all work of this CTA. `work` and `slots` are in shared memory, so that they occupy no
/// registers of the main loop.
template <class Layout, class Compute>
__device__ void for_all_work(const CommonArguments& arguments, const Owner<Layout>& owner, bool owns_queries,
                             Compute compute) {
  __shared__ Work work;
  __shared__ int64_t slots;
  const int64_t all = owner.heads * owner.slots();
  if (blockIdx.x >= all) return;
  if (threadIdx.x == 0) slots = all;
  for (bool first = true;; first = false) {
    if (threadIdx.x < 32) {
      const Work next = find_work(arguments, owner, owns_queries, first ? blockIdx.x : work.slot + gridDim.x);
      __syncwarp();
      if (threadIdx.x == 0) work = next;
    }
    __syncthreads();
    if (work.exists) compute(work);
    const bool last = work.slot + gridDim.x >= slots;
    __syncthreads();  // every thread has read `work`, and is done with its shared memory
    if (last) return;
  }
}

/// The side whose tiles the CTAs own: the queries, or the keys.
template <class Config>
__device__ Owner<typename Config::Layout> query_owner(const CommonArguments& arguments, int64_t entries) {
  return {arguments.params.queries, arguments.packed_rows_q, arguments.params.heads_q, Config::tile_queries, entries};
}
template <class Config>
__device__ Owner<typename Config::Layout> key_owner(const CommonArguments& arguments) {
  return owner_of_keys<typename Config::Layout>(arguments, Config::tile_keys,
                                                Config::keys_shared ? arguments.splits : arguments.params.batch);
}

}  // namespace gdpa::portable
