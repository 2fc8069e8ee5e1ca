// A delay of random length, which the stress test puts at every wait, arrival and copy of the Hopper kernels.
#pragma once

namespace gdpa {

/// Suspends the warp for 0 to 4 us, log-uniformly distributed: half of the delays are shorter than 16 ns. The length
/// depends on the clock and the CTA, so that it differs between warps, CTAs and launches. Generated sources define
/// GDPA_RANDOM_DELAYS in a process that asks for delays (src/gpu/kernels/hopper.h); otherwise this is no instruction.
///
/// It has no branch, so that a warp stays converged. It takes two registers, for which some kernels spill a few bytes.
__device__ __forceinline__ void random_delay() {
#ifdef GDPA_RANDOM_DELAYS
  asm volatile(
      "{\n"
      ".reg .b32 hash, shift;\n"
      "mov.u32 hash, %%clock;\n"
      "mov.u32 shift, %%ctaid.x;\n"
      "add.u32 hash, hash, shift;\n"
      "mul.lo.s32 hash, hash, %0;\n"
      "shr.u32 shift, hash, 16;\n"
      "and.b32 shift, shift, 15;\n"
      "shr.u32 hash, hash, 20;\n"
      "shr.u32 hash, hash, shift;\n"
      "nanosleep.u32 hash;\n"
      "}" ::"n"(0x9e3779b1)
      : "memory");
#endif
}

}  // namespace gdpa
