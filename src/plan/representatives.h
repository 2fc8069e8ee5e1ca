// Problems that stand for all problems of a kind: the same types, heads, function, mask and forms of the operands, with
// every number of rows and of batch entries for which the planner may choose another kernel.
#pragma once

#include <vector>

#include "definition/problem.h"
#include "plan/gpu_plan.h"

namespace gdpa::plan {

/// One problem for each combination of numbers on both sides of the planner's thresholds (thresholds.h). A plan of
/// `problem` with any lengths, number of batch entries and number of heads has the kernels of one of them.
std::vector<Problem> representative_problems(const Problem& problem, const Gpu& gpu);

}  // namespace gdpa::plan
