// The host file of the norms: kernels/portable/norm.cuh and norm_backward.cuh.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "gdpa/norm.h"
#include "gpu/config_text.h"
#include "gpu/kernel.h"
#include "gpu/kernels/element.h"
#include "gpu/plan.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {

/// The members of all three kernels.
struct NormRowsKernel {
  GpuElement element = GpuElement::bfloat16;  ///< of the rows
  int columns = 0;
  bool weight_is_float32 = false;  ///< weight and bias; otherwise they have the type of the rows

  static constexpr bool reads_function = false, reads_mask = false;
  auto operator<=>(const NormRowsKernel&) const = default;
  std::string properties() const { return fmt::format("{} of {} columns", in_source(element), columns); }
  SourceParts source(const Expressions& /*expressions*/) const { return {.config = config().text()}; }

 protected:
  ConfigText config() const {
    const GpuElement weight = weight_is_float32 ? GpuElement::float32 : element;
    ConfigText config;
    config.type("Element", fmt::format("gdpa::{}", in_source(element)));
    config.type("Weight", fmt::format("gdpa::{}", in_source(weight)));
    config.number("columns", columns);
    return config;
  }
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

 protected:
  ConfigText config() const {
    ConfigText config = NormRowsKernel::config();
    config.flag("aligned", aligned);
    config.flag("is_layer", is_layer);
    config.flag("has_weight", has_weight);
    config.flag("has_bias", has_bias);
    config.flag("has_gate", has_gate);
    return config;
  }
};

struct NormKernel : NormOperandsKernel {
  bool has_residual = false;

  using Arguments = portable::NormArguments;
  static constexpr KernelNames names = {"portable", "norm", "norm", "NormArguments"};
  auto operator<=>(const NormKernel&) const = default;

  SourceParts source(const Expressions& /*expressions*/) const {
    ConfigText text = config();
    text.flag("has_residual", has_residual);
    return {.config = text.text(), .ctas = ctas};
  }
};

struct NormBackwardKernel : NormOperandsKernel {
  bool computes_x = false;  ///< which gradients are computed
  bool computes_gate = false;
  bool computes_weight = false;
  bool computes_bias = false;

  using Arguments = portable::NormBackwardArguments;
  static constexpr KernelNames names = {"portable", "norm_backward", "norm_backward", "NormBackwardArguments"};
  auto operator<=>(const NormBackwardKernel&) const = default;

  SourceParts source(const Expressions& /*expressions*/) const {
    ConfigText text = config();
    text.flag("computes_x", computes_x);
    text.flag("computes_gate", computes_gate);
    text.flag("computes_weight", computes_weight);
    text.flag("computes_bias", computes_bias);
    return {.config = text.text(), .ctas = ctas};
  }
};

struct NormReduceKernel : NormRowsKernel {
  using Arguments = portable::NormReduceArguments;
  static constexpr KernelNames names = {"portable", "norm_reduce", "norm_backward", "NormReduceArguments"};
  auto operator<=>(const NormReduceKernel&) const = default;
};

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
