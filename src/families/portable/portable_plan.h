// The plan of the portable kernels. A pure function.
#pragma once

#include "families/family.h"

namespace gdpa::families {

plan::GpuPlan portable_plan(const PlanRequest& request);

/// Adds the kernels of backward for keys whose sequences overlap, if each sequence has a begin and an end. The other
/// kernels of `plan`, of any family, then end at once if keys overlap, except kernels whose CTAs own queries. A pure
/// function.
void add_kernels_of_overlapping_keys(const PlanRequest& request, plan::GpuPlan& plan);

/// Family::plan_parameter_gradients of the portable kernels.
void add_portable_parameter_gradients(const PlanRequest& request, const activation::Function& function,
                                      plan::KernelSpec kernel, plan::GpuPlan& plan);

}  // namespace gdpa::families
