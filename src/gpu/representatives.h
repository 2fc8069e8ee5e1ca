// Problems that stand for all problems of a kind: the same types, heads, function, mask and forms of the operands, with
// every number of rows and of batch entries for which the planner may choose another kernel.
#pragma once

#include <functional>

#include "definition/params.h"
#include "definition/problem.h"
#include "expression/function.h"
#include "gpu/call.h"

namespace gdpa::gpu {

/// Calls visit(problem, params) for each combination of numbers on both sides of the planner's thresholds
/// (thresholds.h). A plan of `problem` with any lengths, number of batch entries and number of heads has the kernels of
/// one of them. `params` has the tensors that `function` reads: their axes of entries, heads and positions are as long
/// as in the problem, and the axis of keys also has lengths with every alignment of rows. An axis of one element stays
/// one.
void visit_representatives(const Problem& problem, const Params& params, const activation::Function& function,
                           const Gpu& gpu, const std::function<void(const Problem&, const Params&)>& visit);

}  // namespace gdpa::gpu
