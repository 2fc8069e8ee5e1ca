// See norm.h.
#include "gpu/kernels/norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "api/norm_checks.h"
#include "definition/divide.h"
#include "expression/function.h"
#include "gdpa/activation.h"
#include "gpu/driver.h"
#include "gpu/loaded_kernels.h"
#include "gpu/memory.h"
#include "gpu/target.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {
namespace {

using api::is_wanted;

/// The threads that are on a multiprocessor together. A thread has 80 to 255 registers then, for its operands and its
/// sums. Elements of rows that are not aligned are loaded one by one, which takes more registers.
int64_t forward_threads(const Norm& norm, bool aligned) {
  if (!aligned) return 384;
  if (norm.gate && norm.residual) return 512;
  return norm.bias && (norm.gate || norm.residual) ? 640 : 768;
}
int64_t backward_threads(const Norm& norm, bool aligned) {
  if (!aligned) return 256;
  return norm.gate ? 384 : 512;
}

constexpr int64_t norm_copy_bytes = 16;

template <class Pointer>
bool is_aligned(const BasicTensorView<Pointer>& rows) {
  const auto is_multiple = [&](int64_t stride) { return stride * size_in_bytes(rows.dtype) % norm_copy_bytes == 0; };
  return reinterpret_cast<std::uintptr_t>(rows.data) % norm_copy_bytes == 0 && is_multiple(rows.strides[0]) &&
         (rows.rank == 2 || is_multiple(rows.strides[1]));
}
template <class... Views>
bool are_aligned(const Norm& norm, const Views&... others) {
  return is_aligned(norm.x) && (!norm.gate || is_aligned(*norm.gate)) &&
         (!norm.residual || is_aligned(*norm.residual)) && ((!others.rank || is_aligned(others)) && ...);
}

template <class Pointer>
portable::NormRows rows_of(const BasicTensorView<Pointer>& rows) {
  const bool has_heads = rows.rank == 3;
  return {const_cast<void*>(static_cast<const void*>(rows.data)), rows.strides[0], has_heads ? rows.strides[1] : 0,
          static_cast<int>(has_heads ? rows.sizes[2] : rows.sizes[1])};
}
portable::NormRows rows_of(const std::optional<TensorView>& rows) {
  return rows ? rows_of(*rows) : portable::NormRows{};
}

const void* data_of(const std::optional<TensorView>& view) { return view ? view->data : nullptr; }

NormRowsKernel rows_kernel_of(const Norm& norm) {
  const std::optional<TensorView>& weights = norm.weight ? norm.weight : norm.bias;
  return {element_of(norm.x.dtype, false), static_cast<int>(api::columns_of(norm.x)),
          weights && weights->dtype == DType::float32};
}

void write_rows(const NormRowsKernel& kernel, ConfigText& config) {
  const GpuElement weight = kernel.weight_is_float32 ? GpuElement::float32 : kernel.element;
  config.type("Element", fmt::format("gdpa::{}", in_source(kernel.element)));
  config.type("Weight", fmt::format("gdpa::{}", in_source(weight)));
  config.number("columns", kernel.columns);
}

void write_operands(const NormOperandsKernel& kernel, ConfigText& config) {
  write_rows(kernel, config);
  config.flag("aligned", kernel.aligned);
  config.flag("is_layer", kernel.is_layer);
  config.flag("has_weight", kernel.has_weight);
  config.flag("has_bias", kernel.has_bias);
  config.flag("has_gate", kernel.has_gate);
}

/// The threads of a row and of a CTA; kernels/portable/norm_row.cuh has the same rule.
struct Threads {
  int64_t of_row = 1;
  int64_t of_cta = 128;

  explicit Threads(const TensorView& x) {
    const int64_t elements = 32 / size_in_bytes(x.dtype);
    while (of_row * elements < api::columns_of(x)) of_row *= 2;
    of_cta = std::max(of_cta, of_row);
  }
};

/// CTAs that have to fit on one multiprocessor.
int64_t ctas_of_multiprocessor(const Norm& norm, int64_t threads) {
  return std::max<int64_t>(1, threads / Threads(norm.x).of_cta);
}

/// CTAs of a launch.
int64_t ctas_of(const Norm& norm, int64_t threads, const Gpu& gpu) {
  const Threads of(norm.x);
  const int64_t most = ctas_of_multiprocessor(norm, threads) * gpu.multiprocessors;
  return std::clamp<int64_t>(divide_up(norm.x.sizes[0], of.of_cta / of.of_row), 1, most);
}

NormOperandsKernel operands_kernel_of(const Norm& norm, bool aligned, int64_t threads) {
  return {rows_kernel_of(norm),
          aligned,
          norm.kind == Norm::Kind::layer,
          norm.weight.has_value(),
          norm.bias.has_value(),
          norm.gate.has_value(),
          static_cast<int>(ctas_of_multiprocessor(norm, threads))};
}

int sums_of(const NormGradients& gradients) {
  return static_cast<int>(is_wanted(gradients.weight)) + static_cast<int>(is_wanted(gradients.bias));
}

/// Aligned rows have the most CTAs.
int64_t workspace_bytes(const Norm& norm, const NormGradients& gradients, const Gpu& gpu) {
  const int64_t ctas = ctas_of(norm, backward_threads(norm, true), gpu);
  const int64_t numbers = ctas * sums_of(gradients) * api::columns_of(norm.x);
  return divide_up(numbers * static_cast<int64_t>(sizeof(float)), Workspace::alignment) * Workspace::alignment;
}

/// Norms evaluate no function; the kernels of the process need one for their keys.
const activation::Function& no_function() {
  static const Activation identity("identity");
  return identity.function();
}

void launch(const LoadedKernel& kernel, int64_t ctas, void* arguments, void* stream) {
  void* parameters[] = {arguments};
  check(Driver::get().launch(kernel.handle, static_cast<unsigned>(ctas), 1, 1, kernel.threads, 1, 1,
                             kernel.shared_bytes, static_cast<Stream>(stream), parameters, nullptr),
        "launching a kernel");
}

}  // namespace

std::string NormRowsKernel::properties() const { return fmt::format("{} of {} columns", in_source(element), columns); }

SourceParts NormKernel::source(const Expressions& /*expressions*/) const {
  ConfigText config;
  write_operands(*this, config);
  config.flag("has_residual", has_residual);
  return {.config = config.text(), .ctas = ctas};
}

SourceParts NormBackwardKernel::source(const Expressions& /*expressions*/) const {
  ConfigText config;
  write_operands(*this, config);
  config.flag("computes_x", computes_x);
  config.flag("computes_gate", computes_gate);
  config.flag("computes_weight", computes_weight);
  config.flag("computes_bias", computes_bias);
  return {.config = config.text(), .ctas = ctas};
}

SourceParts NormReduceKernel::source(const Expressions& /*expressions*/) const {
  ConfigText config;
  write_rows(*this, config);
  return {.config = config.text()};
}

NormStep norm_step(const Norm& norm, bool aligned, const Gpu& gpu) {
  const int64_t threads = forward_threads(norm, aligned);
  const NormKernel kernel{operands_kernel_of(norm, aligned, threads), norm.residual.has_value()};
  return {Kernel(kernel), ctas_of(norm, threads, gpu)};
}

std::vector<NormStep> norm_backward_steps(const Norm& norm, const NormGradients& gradients, bool aligned,
                                          const Gpu& gpu) {
  const int64_t threads = backward_threads(norm, aligned);
  const NormBackwardKernel kernel{operands_kernel_of(norm, aligned, threads), is_wanted(gradients.x),
                                  is_wanted(gradients.gate), is_wanted(gradients.weight), is_wanted(gradients.bias)};
  std::vector<NormStep> steps = {{Kernel(kernel), ctas_of(norm, threads, gpu)}};
  const int sums = sums_of(gradients);
  if (sums == 0) return steps;
  constexpr int64_t numbers_of_a_cta = 32;
  steps.push_back(
      {Kernel(NormReduceKernel{rows_kernel_of(norm)}), divide_up(sums * api::columns_of(norm.x), numbers_of_a_cta)});
  return steps;
}

void run_norm(const Norm& norm, const MutableTensorView& y, const MutableTensorView& statistics) {
  const int device = norm.x.device.index;
  const CurrentDevice current(device);
  const NormStep step = norm_step(norm, are_aligned(norm, y), target_of(device).gpu);
  const KernelsOfCall kernels = find_kernels({&step.kernel}, no_function(), device, static_cast<Stream>(norm.stream));
  portable::NormArguments arguments{
      norm.x.sizes[0],      static_cast<float>(norm.eps), rows_of(norm.x),
      rows_of(norm.gate),   rows_of(norm.residual),       rows_of(y),
      data_of(norm.weight), data_of(norm.bias),           static_cast<portable::RowStatistics*>(statistics.data)};
  launch(kernels[0], step.ctas, &arguments, norm.stream);
}

void run_norm_backward(const Norm& norm, const TensorView& grad_y, const TensorView& statistics,
                       const NormGradients& gradients) {
  const int device = norm.x.device.index;
  const CurrentDevice current(device);
  const Gpu& gpu = target_of(device).gpu;
  const std::vector<NormStep> steps =
      norm_backward_steps(norm, gradients, are_aligned(norm, grad_y, gradients.x, gradients.gate), gpu);
  std::vector<const Kernel*> wanted;
  for (const NormStep& step : steps) wanted.push_back(&step.kernel);
  const KernelsOfCall kernels = find_kernels(wanted, no_function(), device, static_cast<Stream>(norm.stream));
  const Memory memory(norm.workspace, workspace_bytes(norm, gradients, gpu), static_cast<Stream>(norm.stream),
                      "norm_workspace_bytes");
  auto* const partials = static_cast<float*>(memory.at(0));
  portable::NormBackwardArguments arguments{norm.x.sizes[0],
                                            rows_of(norm.x),
                                            rows_of(norm.gate),
                                            rows_of(grad_y),
                                            rows_of(gradients.x),
                                            rows_of(gradients.gate),
                                            data_of(norm.weight),
                                            data_of(norm.bias),
                                            static_cast<const portable::RowStatistics*>(statistics.data),
                                            partials};
  launch(kernels[0], steps.front().ctas, &arguments, norm.stream);
  if (steps.size() == 1) return;
  portable::NormReduceArguments reduce{partials, steps.front().ctas, sums_of(gradients), {}};
  int sums = 0;
  for (const MutableTensorView* const gradient : {&gradients.weight, &gradients.bias}) {
    if (is_wanted(*gradient)) reduce.gradients[sums++] = gradient->data;
  }
  launch(kernels[1], steps.back().ctas, &reduce, norm.stream);
}

int64_t norm_workspace_bytes(const Norm& norm, const NormGradients& gradients) {
  return workspace_bytes(norm, gradients, target_of(norm.x.device.index).gpu);
}

}  // namespace gdpa::gpu
