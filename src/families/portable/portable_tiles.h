// Tiles of the portable kernels: ordered lists of the tiles that were measured to be fast. A kernel gets the first one
// that fits its head dims, the GPU's shared memory, and the registers that the function leaves. Pure functions;
// docs/kernels/portable.md has the tables.
#pragma once

#include "plan/gpu_plan.h"

namespace gdpa::families {

/// Sets the tile, warps, stages and CTAs of a kernel to the first fitting tile of its list. All other members must be
/// set. Throws Error (runtime) if the GPU has too little shared memory for all of them.
void choose_tiles(plan::KernelSpec& kernel, const plan::Gpu& gpu, plan::FunctionRegisters function);

/// Dynamic shared memory of a CTA, the same number as the kernel's own constant.
int64_t shared_bytes(const plan::KernelSpec& kernel);

/// An upper bound of the static shared memory of a CTA: its piece of work, and the coordinates of the tiles in its
/// stages.
constexpr int64_t static_shared_bytes = 256;

/// Registers of a thread that hold accumulators, the most at once.
int accumulator_registers(const plan::KernelSpec& kernel);

}  // namespace gdpa::families
