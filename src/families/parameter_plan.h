// The plan of the gradients of tensors that the function reads, as far as it does not depend on the family of the
// kernel: a kernel of its own after the kernels of backward adds to sums, and another kernel rounds the sums.
#pragma once

#include <optional>

#include "definition/params.h"
#include "expression/function.h"
#include "families/planning.h"

namespace gdpa::families {

/// The wanted gradients, bit n for tensor n, if all are of numbers of the head and the function reads nothing else. A
/// backward kernel can then compute them with f and f'. Otherwise, or if they need many registers, 0.
unsigned number_gradients(const Problem& problem, const activation::Function& function);

/// The wanted gradients that are sums of dS, which a backward kernel can add up. A dense bias in deterministic mode is
/// not among them: an exact sum has too many instructions for each score.
unsigned score_gradients(const Problem& problem, const activation::Function& function);

/// Whether no two scores of the call read one element of a tensor of score_gradients() by their positions, unless an
/// index is clamped.
bool has_own_elements(const Problem& problem, const Params& params, const activation::Function& function);

/// The type of a term that backward stores in the gradient of a tensor, if it stores terms. `plan` has the kernels of
/// backward.
std::optional<plan::ParameterSum> stored_term_for(const PlanRequest& request, const Params& params,
                                                  const activation::Function& function, const plan::GpuPlan& plan);

/// The type of the sums of all wanted gradients.
plan::ParameterSum parameter_sum_for(const Problem& problem, const Params& params,
                                     const activation::Function& function);

/// The members of the kernel for these gradients that do not depend on its family.
plan::KernelSpec parameter_kernel_for(const PlanRequest& request, unsigned wanted, plan::ParameterSum sum);

/// Adds the sums of all wanted gradients, plan.parameter_sum, to the workspace, and the kernel that rounds them.
void add_parameter_sums(const PlanRequest& request, const Params& params, plan::GpuPlan& plan);

/// The number of elements of a tensor.
int64_t elements_of(const BoundTensor& tensor);

/// The distance in the sums from one tensor to the next: the elements of all wanted tensors before are in front.
int64_t bytes_of_sum(plan::ParameterSum sum);

}  // namespace gdpa::families
