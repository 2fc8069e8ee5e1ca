// The arguments of the Hopper kernels whose CTAs own query tiles: hopper_forward and hopper_parameter_gradients.
#pragma once

#include "gpu/call.h"
#include "gpu/kernels/attention.h"
#include "gpu/tensor_maps.h"
#include "hopper/arguments.cuh"

namespace gdpa::gpu {

/// `output` has the rows of O. K and V are loaded in boxes of `box_keys` rows.
pipeline::QueryMajorArguments query_major_arguments(const BoundCall& call, int box_keys,
                                                    const pipeline::TileDistribution& tiles, Tensor output);

/// Writes Config::Layout. `box_keys`: keys are in pages, and TMA loads so many at once; 0: there are no pages.
void write_query_major_layout(const AttentionKernel& kernel, int box_keys, ConfigText& config);

}  // namespace gdpa::gpu
