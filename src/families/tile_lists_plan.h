// The plan of the lists of partner tiles of a mask expression (definition/tile_lists.h): the lists that the kernels of
// a plan read, their part of the workspace, and the kernels that write them. The lists of a prepared mask are written
// before the call.
#pragma once

#include "definition/problem.h"
#include "plan/gpu_plan.h"

namespace gdpa::families {

/// Adds the lists to a plan that has all other steps, if the problem has a mask expression. Throws Error (value) if the
/// mask is prepared for kernels with other tiles.
void add_tile_lists(const Problem& problem, plan::GpuPlan& plan);

/// Plans the preparation of the lists of a call, whose plan add_tile_lists() has completed: places the lists that
/// `prepared` does not have yet after its end. The result has only tile_lists and the list_steps that write the new
/// lists. Its workspace is the memory of the prepared mask.
plan::GpuPlan plan_prepared_lists(const Problem& problem, const plan::GpuPlan& of_call, plan::PreparedTiles& prepared);

}  // namespace gdpa::families
