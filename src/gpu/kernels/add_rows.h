// The host file of kernels/portable/add_rows.cuh, which adds Q to O, or dO to dQ, with Problem::add_query.
#pragma once

#include <optional>

#include "gpu/launch.h"

namespace gdpa::gpu {

/// The last launch of a call; none if nothing is added.
std::optional<Launch> add_rows(const Call& call);

}  // namespace gdpa::gpu
