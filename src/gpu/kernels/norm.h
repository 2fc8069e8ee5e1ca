// The host file of the norms: kernels/portable/norm.cuh, norm_backward.cuh and norm_reduce.cuh.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gdpa/norm.h"
#include "gpu/call.h"
#include "gpu/kernel.h"
#include "gpu/kernels/attention.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {

/// The members of all three kernels.
struct NormRowsKernel {
  GpuElement element = GpuElement::bfloat16;  ///< of the rows
  int columns = 0;
  bool weight_is_float32 = false;  ///< weight and bias; otherwise they have the type of the rows

  static constexpr bool reads_function = false, reads_mask = false;
  auto operator<=>(const NormRowsKernel&) const = default;
  std::string properties() const;
};

/// The members of the kernels that read the rows.
struct NormOperandsKernel : NormRowsKernel {
  bool aligned = false;
  bool is_layer = false;  ///< otherwise rms
  bool has_weight = false;
  bool has_bias = false;
  bool has_gate = false;
  int ctas = 1;  ///< CTAs that have to fit on one multiprocessor

  auto operator<=>(const NormOperandsKernel&) const = default;
};

struct NormKernel : NormOperandsKernel {
  bool has_residual = false;

  using Arguments = portable::NormArguments;
  static constexpr KernelNames names = {"portable", "norm", "norm", "NormArguments"};
  auto operator<=>(const NormKernel&) const = default;
  SourceParts source(const Expressions& expressions) const;
};

struct NormBackwardKernel : NormOperandsKernel {
  bool computes_x = false;  ///< which gradients are computed
  bool computes_gate = false;
  bool computes_weight = false;
  bool computes_bias = false;

  using Arguments = portable::NormBackwardArguments;
  static constexpr KernelNames names = {"portable", "norm_backward", "norm_backward", "NormBackwardArguments"};
  auto operator<=>(const NormBackwardKernel&) const = default;
  SourceParts source(const Expressions& expressions) const;
};

struct NormReduceKernel : NormRowsKernel {
  using Arguments = portable::NormReduceArguments;
  static constexpr KernelNames names = {"portable", "norm_reduce", "norm_reduce", "NormReduceArguments"};
  auto operator<=>(const NormReduceKernel&) const = default;
  SourceParts source(const Expressions& expressions) const;
};

/// The arguments of these functions are checked.
void run_norm(const Norm& norm, const MutableTensorView& y, const MutableTensorView& statistics);
void run_norm_backward(const Norm& norm, const TensorView& grad_y, const TensorView& statistics,
                       const NormGradients& gradients);
int64_t norm_workspace_bytes(const Norm& norm, const NormGradients& gradients);

/// A kernel of a norm and its CTAs.
struct NormStep {
  Kernel kernel;
  int64_t ctas;
};

/// Returns the kernel of a forward call, or the kernels of a backward call.
NormStep norm_step(const Norm& norm, bool aligned, const Gpu& gpu);
std::vector<NormStep> norm_backward_steps(const Norm& norm, const NormGradients& gradients, bool aligned,
                                          const Gpu& gpu);

}  // namespace gdpa::gpu
