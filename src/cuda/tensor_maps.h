// Tensor maps: an operand as the copy engine (TMA) of Hopper sees it; kernels/hopper/tensor_map.cuh says what a map
// says.
#pragma once

#include "definition/params.h"
#include "definition/problem.h"
#include "hopper/arguments.cuh"
#include "plan/gpu_plan.h"

namespace gdpa::cuda {

/// Whether maps of the operands can be made that the problem's direction needs.
plan::TensorMaps tensor_maps(const Problem& problem, const Params& params);

/// The arguments of the Hopper forward: those of every kernel, and the maps for the tiles of the plan.
hopper::ForwardArguments map_forward(const Problem& problem, const CommonArguments& common, const plan::GpuPlan& plan);

/// Those of the Hopper backward.
hopper::BackwardArguments map_backward(const Problem& problem, const CommonArguments& common,
                                       const plan::GpuPlan& plan);

}  // namespace gdpa::cuda
