// The host file of kernels/portable/clear_gaps.cuh, which writes zeros to the rows of a result that no sequence has.
#pragma once

#include <vector>

#include "gpu/launch.h"

namespace gdpa::gpu {

/// Adds a launch for each result of the call whose side has gaps.
void clear_gaps(const Problem& problem, std::vector<Launch>& launches);

}  // namespace gdpa::gpu
