// Which problems the Hopper forward takes, and in which tiles. Pure functions; docs/kernels/hopper-forward.md has the
// measurements.
#pragma once

#include <string>

#include "plan/gpu_plan.h"

namespace gdpa::plan {

/// Why the Hopper forward does not take a problem, or an empty string. Of the kernel, alignment is
/// read.
std::string why_not_hopper(const Problem& problem, const Gpu& gpu, const KernelSpec& kernel, TensorMaps tensor_maps);

/// Sets the family, tile, warps and buffers for keys of this mean length. Where they are few, K and V need few buffers
/// to stay, and Q gets several, since it streams. With a head dim above 128 registers and shared memory decide.
void choose_hopper_tiles(KernelSpec& kernel, int64_t mean_keys);

}  // namespace gdpa::plan
