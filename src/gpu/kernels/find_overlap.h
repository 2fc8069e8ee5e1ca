// The host file of kernels/portable/find_overlap.cuh, which finds whether two sequences of keys have a row in common.
#pragma once

#include "gpu/launch.h"

namespace gdpa::gpu {

/// The launch that writes the result to the workspace at `offset`, in front of one bit for each row. All are 0 before.
Launch find_overlap(const Problem& problem, int64_t offset);

}  // namespace gdpa::gpu
