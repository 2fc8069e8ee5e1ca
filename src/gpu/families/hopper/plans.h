// The plans of the Hopper kernels. Pure functions.
#pragma once

#include <string>

#include "gpu/plan.h"

namespace gdpa::gpu {

/// Adds the launches of forward, or of backward.
void add_hopper_forward(const Call& call, GpuPlan& plan);
void add_hopper_backward(const Call& call, GpuPlan& plan);

/// Why the Hopper kernels cannot compute backward of a call; empty if they can. The conditions of all Hopper kernels
/// are not among the reasons.
std::string why_not_hopper_backward(const Call& call);

/// Adds the kernel for the gradients of tensors.
void add_hopper_parameter_gradients(const Call& call, const ParameterGradientsForm& form, GpuPlan& plan);

}  // namespace gdpa::gpu
