// The host file of kernels/portable/round_parameters.cuh, which rounds the sums of the gradients of tensors.
#pragma once

#include "gpu/launch.h"
#include "gpu/parameter_sums.h"

namespace gdpa::gpu {

/// The launch for sums of so many elements of all wanted gradients.
Launch round_parameters(const Call& call, ParameterSum sum, int64_t elements);

}  // namespace gdpa::gpu
