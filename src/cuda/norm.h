// Norms in the CUDA backend: their kernels, workspace and launches (kernels/portable/norm.cuh).
#pragma once

#include <cstdint>
#include <vector>

#include "gdpa/norm.h"
#include "plan/gpu_plan.h"

namespace gdpa::cuda {

/// The arguments of these functions are checked.
void run_norm(const Norm& norm, const MutableTensorView& y, const MutableTensorView& statistics);
void run_norm_backward(const Norm& norm, const TensorView& grad_y, const TensorView& statistics,
                       const NormGradients& gradients);
int64_t norm_workspace_bytes(const Norm& norm, const NormGradients& gradients);

/// Returns the kernel of a forward call, or the kernels of a backward call, with their CTAs.
plan::GpuStep norm_step(const Norm& norm, bool aligned, const plan::Gpu& gpu);
std::vector<plan::GpuStep> norm_backward_steps(const Norm& norm, const NormGradients& gradients, bool aligned,
                                               const plan::Gpu& gpu);

}  // namespace gdpa::cuda
