// Four warps that multiply together: their index, and their share of the registers; and what four others do for them.
#pragma once

#include "common/lanes.cuh"
#include "gdpa/integers.h"

namespace gdpa::hopper {

constexpr int warpgroup_threads = 128;

/// A number that is the same in every lane, known to be so by the compiler: what depends on it needs no vector
/// registers, and a branch on it is no divergence, which would make products wait for each other.
__device__ inline int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

__device__ inline int warpgroup_index() { return uniform(static_cast<int>(threadIdx.x) / warpgroup_threads); }

/// The thread's index within its warpgroup, read anew at every call, so that addresses made from it occupy no registers
/// while others need them.
__device__ inline unsigned fresh_thread_index() {
  unsigned index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index % warpgroup_threads;
}

/// The same number, from which a loop computes anew, each time, what else would lie in registers all along.
__device__ inline int64_t computed_anew(int64_t number) {
  int64_t same;
  asm volatile("mov.b64 %0, %1;" : "=l"(same) : "l"(number));
  return same;
}

/// All warps of a warpgroup take more registers, once others have given them back, or give them back.
template <int registers>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ void give_registers_back() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/// The work of the warpgroup that multiplies nothing: its first warp deals, and of each other one thread copies.
template <class Deal, class First, class Second, class Third>
__device__ __forceinline__ void deal_and_copy(Deal deal, First first, Second second, Third third) {
  // Read anew: who calls this again would keep it while the dealer works, which is one register too many.
  const unsigned warp = fresh_thread_index() / 32;
  if (warp == 0) {
    deal();
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

}  // namespace gdpa::hopper
