// The host file of kernels/portable/check_indices.cuh, which stops a call with an index outside of its axis in debug
// mode.
#pragma once

#include <optional>

#include "gpu/launch.h"

namespace gdpa::gpu {

/// The launch that checks the indices of f and of the mask; none if they read nothing, or without the debug mode.
std::optional<Launch> check_indices(const Call& call);

}  // namespace gdpa::gpu
