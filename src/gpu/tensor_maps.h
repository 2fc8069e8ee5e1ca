// Tensor maps, which TMA reads to find the elements of an operand; kernels/pipeline/tensor_map.cuh describes their
// contents.
#pragma once

#include "gpu/call.h"
#include "pipeline/arguments.cuh"

namespace gdpa::gpu {

/// Returns whether tensor maps can describe all operands of the problem's direction.
bool has_tensor_maps(const Problem& problem, const Params& params);

/// Returns the tensor map of an operand that TMA copies in boxes of `box_rows` rows, 64 or 32 columns wide. Throws
/// Error (runtime) if the driver is too old for tensor maps.
pipeline::MappedOperand map_operand(const BoundCall& call, Operand Params::*operand, int box_rows,
                                    int box_columns = pipeline::box_columns);

}  // namespace gdpa::gpu
