// The host file of the kernel of kernels/hopper/stored_terms.cuh that writes the elements of a gradient that backward does not
// store if it stores terms.
#pragma once

#include "gpu/launch.h"
#include "gpu/plan.h"

namespace gdpa::gpu {

/// The launch for the only wanted gradient. `plan` has the tiles of backward.
Launch complete_terms(const Call& call, GpuPlan& plan);

}  // namespace gdpa::gpu
