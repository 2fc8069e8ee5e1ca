// The plan of the lists of partner tiles of a mask expression (definition/tile_lists.h): the lists that the kernels of
// a plan read, their part of the workspace, and the kernels that write them.
#pragma once

#include "definition/problem.h"
#include "plan/gpu_plan.h"

namespace gdpa::families {

/// Adds the lists to a plan that has all other steps, if the problem has a mask expression.
void add_tile_lists(const Problem& problem, plan::GpuPlan& plan);

}  // namespace gdpa::families
