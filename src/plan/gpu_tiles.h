// Tiles of the portable kernels: ordered lists of what was found to be fast, and which of them fits the head dims, the
// GPU's shared memory and the registers that a function leaves. Pure functions; docs/kernels/portable.md has the
// tables.
#pragma once

#include "plan/gpu_plan.h"

namespace gdpa::plan {

/// Sets the tile, warps, stages and CTAs of a kernel whose other members are set: the first of its list that fits.
/// Throws Error (runtime) where the GPU has too little shared memory for all of them.
void choose_tiles(KernelSpec& kernel, const Gpu& gpu, FunctionRegisters function);

/// Dynamic shared memory of a CTA: what the kernel's own constant says.
int64_t shared_bytes(const KernelSpec& kernel);

/// Shared memory that a CTA has beside it, at most: its piece of work, and the places of the tiles in its stages.
constexpr int64_t static_shared_bytes = 256;

/// Registers of a thread that hold sums, the most at once.
int sum_registers(const KernelSpec& kernel);

}  // namespace gdpa::plan
