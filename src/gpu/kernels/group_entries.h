// The host file of kernels/portable/group_entries.cuh, which lists the batch entries of each sequence of keys.
#pragma once

#include <vector>

#include "gpu/launch.h"
#include "gpu/sequences.h"

namespace gdpa::gpu {

/// Adds the launches: one sorts blocks of entries, some merge them, and the last one finds the first entries.
void group_entries(const Problem& problem, const SequencesPlan& plan, std::vector<Launch>& launches);

}  // namespace gdpa::gpu
