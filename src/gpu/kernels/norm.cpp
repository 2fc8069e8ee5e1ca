// See norm.h.
#include "gpu/kernels/norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "api/norm_checks.h"
#include "definition/divide.h"
#include "expression/function.h"
#include "gdpa/activation.h"
#include "gpu/backend.h"
#include "gpu/config_text.h"
#include "gpu/driver.h"
#include "gpu/kernels/element.h"
#include "gpu/target.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {
namespace {

using api::is_wanted;

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

/// The memory of the partial sums of all CTAs. Aligned rows have the most CTAs.
int64_t bytes_of_partials(const Norm& norm, const NormGradients& gradients, const Gpu& gpu) {
  const int sums = static_cast<int>(is_wanted(gradients.weight)) + static_cast<int>(is_wanted(gradients.bias));
  const int64_t ctas = ctas_of(norm, backward_threads(norm, true), gpu);
  return ctas * sums * api::columns_of(norm.x) * static_cast<int64_t>(sizeof(float));
}

/// Norms evaluate no function; the kernels of the process need one for their keys.
const activation::Function& no_function() {
  static const Activation identity("identity");
  return identity.function();
}

void run(const Norm& norm, const GpuPlan& plan) {
  Problem problem;
  problem.device = norm.x.device;
  run_plan(plan, problem, {}, no_function(), static_cast<Stream>(norm.stream), norm.workspace, "norm_workspace_bytes");
}

}  // namespace

GpuPlan norm_plan(const Norm& norm, const MutableTensorView& y, const MutableTensorView& statistics, bool aligned,
                  const Gpu& gpu) {
  const int64_t threads = forward_threads(norm, aligned);
  const NormKernel kernel{operands_kernel_of(norm, aligned, threads), norm.residual.has_value()};
  const portable::NormArguments arguments{
      norm.x.sizes[0],      static_cast<float>(norm.eps), rows_of(norm.x),
      rows_of(norm.gate),   rows_of(norm.residual),       rows_of(y),
      data_of(norm.weight), data_of(norm.bias),           static_cast<portable::RowStatistics*>(statistics.data)};
  GpuPlan plan;
  plan.launches.push_back(
      Launch::of(kernel, ctas_of(norm, threads, gpu), [arguments](const BoundCall& /*call*/) { return arguments; }));
  return plan;
}

GpuPlan norm_backward_plan(const Norm& norm, const TensorView& grad_y, const TensorView& statistics,
                           const NormGradients& gradients, bool aligned, const Gpu& gpu) {
  const int64_t threads = backward_threads(norm, aligned), ctas = ctas_of(norm, threads, gpu);
  const NormBackwardKernel kernel{operands_kernel_of(norm, aligned, threads), is_wanted(gradients.x),
                                  is_wanted(gradients.gate), is_wanted(gradients.weight), is_wanted(gradients.bias)};
  const portable::NormBackwardArguments arguments{norm.x.sizes[0],
                                                  rows_of(norm.x),
                                                  rows_of(norm.gate),
                                                  rows_of(grad_y),
                                                  rows_of(gradients.x),
                                                  rows_of(gradients.gate),
                                                  data_of(norm.weight),
                                                  data_of(norm.bias),
                                                  static_cast<const portable::RowStatistics*>(statistics.data),
                                                  nullptr};
  GpuPlan plan;
  const int64_t partials = plan.workspace.reserve(bytes_of_partials(norm, gradients, gpu));
  plan.launches.push_back(Launch::of(kernel, ctas, [arguments, partials](const BoundCall& call) {
    portable::NormBackwardArguments with_partials = arguments;
    with_partials.partials = call.at<float>(partials);
    return with_partials;
  }));
  portable::NormReduceArguments reduce{nullptr, ctas, 0, {}};
  for (const MutableTensorView* const gradient : {&gradients.weight, &gradients.bias}) {
    if (is_wanted(*gradient)) reduce.gradients[reduce.sums++] = gradient->data;
  }
  if (reduce.sums == 0) return plan;
  constexpr int64_t numbers_of_a_cta = 32;
  plan.launches.push_back(Launch::of(NormReduceKernel{rows_kernel_of(norm)},
                                     divide_up(reduce.sums * api::columns_of(norm.x), numbers_of_a_cta),
                                     [reduce, partials](const BoundCall& call) {
                                       portable::NormReduceArguments with_partials = reduce;
                                       with_partials.partials = call.at<float>(partials);
                                       return with_partials;
                                     }));
  return plan;
}

void run_norm(const Norm& norm, const MutableTensorView& y, const MutableTensorView& statistics) {
  const CurrentDevice current(norm.x.device.index);
  run(norm, norm_plan(norm, y, statistics, are_aligned(norm, y), target_of(norm.x.device.index).gpu));
}

void run_norm_backward(const Norm& norm, const TensorView& grad_y, const TensorView& statistics,
                       const NormGradients& gradients) {
  const CurrentDevice current(norm.x.device.index);
  const bool aligned = are_aligned(norm, grad_y, gradients.x, gradients.gate);
  run(norm, norm_backward_plan(norm, grad_y, statistics, gradients, aligned, target_of(norm.x.device.index).gpu));
}

int64_t norm_workspace_bytes(const Norm& norm, const NormGradients& gradients) {
  return norm_backward_plan(norm, {}, {}, gradients, true, target_of(norm.x.device.index).gpu).workspace.bytes();
}

}  // namespace gdpa::gpu
