// The plan of the gradients of tensors that the function reads: a kernel of its own after the kernels of backward.
#pragma once

#include "definition/params.h"
#include "families/planning.h"

namespace gdpa::families {

/// Adds the kernels of problem.wanted.parameters to a plan, and their sums to its workspace.
void add_parameter_gradients(const PlanRequest& request, const Params& params, const activation::Function& function,
                             plan::GpuPlan& plan);

/// The number of elements of a tensor.
int64_t elements_of(const BoundTensor& tensor);

/// The distance in the sums from one tensor to the next: the elements of all wanted tensors before are in front.
int64_t bytes_of_sum(plan::ParameterSum sum);

}  // namespace gdpa::families
