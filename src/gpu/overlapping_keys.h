// Backward of keys whose sequences may overlap: two sequences of keys with a begin and an end may have a row in common.
#pragma once

#include <vector>

#include "gpu/plan.h"

namespace gdpa::gpu {

/// If sequences of keys may overlap, makes the attention kernels of the plan that own keys run only if no two sequences
/// have a row in common. Returns the launches for the other case: portable kernels that own rows of the keys. They are
/// the last launches of the call. The device knows which case it is: find_overlap says so. There are none if sequences
/// cannot overlap. Without this, all such calls would have the portable kernels, which take more than twice the time on
/// Hopper.
std::vector<Launch> separate_overlapping_keys(const Call& call, GpuPlan& plan);

}  // namespace gdpa::gpu
