// The plan of the portable kernels. A pure function.
#pragma once

#include "families/family.h"

namespace gdpa::families {

plan::GpuPlan portable_plan(const PlanRequest& request);

/// Family::plan_parameter_gradients of the portable kernels.
void add_portable_parameter_gradients(const PlanRequest& request, const activation::Function& function,
                                      plan::KernelSpec kernel, plan::GpuPlan& plan);

}  // namespace gdpa::families
