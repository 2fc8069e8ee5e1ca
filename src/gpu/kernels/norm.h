// The host file of the norms: kernels/portable/norm.cuh and norm_backward.cuh.
#pragma once

#include <cstdint>

#include "gdpa/norm.h"
#include "gpu/plan.h"

namespace gdpa::gpu {

/// The plan of a forward call, and of a backward call. `aligned`: every row begins at a multiple of 16 bytes.
GpuPlan norm_plan(const Norm& norm, const MutableTensorView& y, const MutableTensorView& statistics, bool aligned,
                  const Gpu& gpu);
GpuPlan norm_backward_plan(const Norm& norm, const TensorView& grad_y, const TensorView& statistics,
                           const NormGradients& gradients, bool aligned, const Gpu& gpu);

/// The arguments of these functions are checked.
void run_norm(const Norm& norm, const MutableTensorView& y, const MutableTensorView& statistics);
void run_norm_backward(const Norm& norm, const TensorView& grad_y, const TensorView& statistics,
                       const NormGradients& gradients);
int64_t norm_workspace_bytes(const Norm& norm, const NormGradients& gradients);

}  // namespace gdpa::gpu
