// The problems that the Hopper kernels compute, and their plans. Pure functions; docs/notebook/hopper-forward.md and
// hopper-backward.md have the measurements.
#pragma once

#include <string>

#include "families/family.h"

namespace gdpa::families {

/// Family::why_not and Family::plan of the Hopper kernels.
std::string why_not_hopper(const PlanRequest& request);
plan::GpuPlan hopper_plan(const PlanRequest& request);

/// The same of the kernel for the gradients of tensors.
std::string why_not_hopper_parameter_gradients(const PlanRequest& request);
void add_hopper_parameter_gradients(const PlanRequest& request, const Params& params,
                                    const activation::Function& function, plan::KernelSpec kernel, plan::GpuPlan& plan);

}  // namespace gdpa::families
