// A warpgroup, four warps that issue WGMMA together: its index, its registers, and the roles of the producer warpgroup.
#pragma once

#include "common/lanes.cuh"
#include "gdpa/integers.h"
#include "pipeline/barrier.cuh"

namespace gdpa::pipeline {

constexpr int warpgroup_threads = 128;

/// The value of lane 0, in every lane. The compiler then knows that the value is uniform in the warp. Values that
/// depend on it need no vector registers, and a branch on it is not divergent, which would serialise WGMMA.
__device__ inline int broadcast_lane_0(int value) { return __shfl_sync(0xffffffffu, value, 0); }

__device__ inline int warpgroup_index() { return broadcast_lane_0(static_cast<int>(threadIdx.x) / warpgroup_threads); }

/// The index of the warp in its warpgroup, uniform in the warp. Values that depend on it need no vector registers.
__device__ inline int warp_in_warpgroup() { return broadcast_lane_0(static_cast<int>(threadIdx.x / 32)) % 4; }

/// The index of the thread in its warpgroup. Each call reads the special register, so that addresses computed from it
/// occupy no registers between their uses.
__device__ inline unsigned thread_in_warpgroup() {
  unsigned index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index % warpgroup_threads;
}

/// The same number, hidden from the optimiser: a loop recomputes the values that depend on it in each iteration
/// instead of keeping them in registers.
__device__ inline int64_t launder(int64_t number) {
  int64_t same;
  asm volatile("mov.b64 %0, %1;" : "=l"(same) : "l"(number));
  return same;
}

/// Ping-pong order: two consumer warpgroups issue their products in alternation. Each waits at a named barrier of its
/// own, the first of which is `barrier`. A single warpgroup does not wait.
template <int warpgroups, int barrier>
struct PingPong {
  __device__ __forceinline__ static void wait(int warpgroup) {
    if (warpgroups > 1) named_barrier_sync(barrier + warpgroup, warpgroups * warpgroup_threads);
  }
  __device__ __forceinline__ static void arrive(int warpgroup) {
    if (warpgroups > 1) named_barrier_arrive(barrier + (warpgroup ^ 1), warpgroups * warpgroup_threads);
  }
};

/// Gives a warpgroup its registers: those that the producer warpgroup, the last one, releases go to the consumers.
/// Returns whether it is the producer warpgroup.
template <class Shared>
__device__ __forceinline__ bool take_registers(int warpgroup) {
  if (warpgroup == Shared::warpgroups) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Shared::producer_registers));
    return true;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Shared::consumer_registers));
  return false;
}

/// The producer warpgroup: warp 0 runs the tile scheduler, and one thread of each other warp runs its role.
template <class Scheduler, class First, class Second, class Third>
__device__ __forceinline__ void run_producer_warpgroup(Scheduler scheduler, First first, Second second, Third third) {
  const unsigned warp = thread_in_warpgroup() / 32;
  if (warp == 0) {
    scheduler();
  } else if (lane_index() == 0) {
    if (warp == 1) {
      first();
    } else if (warp == 2) {
      second();
    } else {
      third();
    }
  }
}

}  // namespace gdpa::pipeline
