// The plan of the gradients of tensors that the function reads, as far as it does not depend on the family of the
// kernel: a kernel of its own after the kernels of backward adds to sums, and another kernel rounds the sums.
#pragma once

#include "activation/function.h"
#include "definition/params.h"
#include "families/planning.h"

namespace gdpa::families {

/// The members of the kernel that do not depend on its family.
plan::KernelSpec parameter_kernel_for(const PlanRequest& request, const Params& params,
                                      const activation::Function& function);

/// Adds the sums of the first of plan.parameter_steps to the workspace, and the kernel that rounds them.
void add_parameter_sums(const PlanRequest& request, const Params& params, plan::GpuPlan& plan);

/// The number of elements of a tensor.
int64_t elements_of(const BoundTensor& tensor);

/// The distance in the sums from one tensor to the next: the elements of all wanted tensors before are in front.
int64_t bytes_of_sum(plan::ParameterSum sum);

}  // namespace gdpa::families
