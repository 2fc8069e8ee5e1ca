// Generating the source of a kernel; see source.h.
#include "cuda/source.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "activation/rounded_query.h"

namespace gdpa::cuda {
namespace {

using plan::GpuElement;
using plan::KernelFamily;
using plan::KernelKind;
using plan::KernelSpec;

/// GDPA_RANDOM_DELAYS=1: a delay of random length at every wait, arrival and copy of the Hopper kernels, for the stress
/// test (kernels/common/random_delay.cuh); for the life of the process.
bool has_random_delays(const KernelSpec& kernel) {
  static const bool is_asked = [] {
    const char* const text = std::getenv("GDPA_RANDOM_DELAYS");
    return text != nullptr && std::string_view(text) == "1";
  }();
  return is_asked && kernel.family == KernelFamily::hopper;
}

std::string_view name_of(KernelFamily family) {
  switch (family) {
    case KernelFamily::portable:
      return "portable";
    case KernelFamily::hopper:
      return "hopper";
  }
  return "";
}

/// How a source names what belongs to a kind of kernel.
struct KindInSource {
  std::string_view name;
  std::string_view header;     ///< the file that has the kernel
  std::string_view arguments;  ///< what it takes
  bool has_function = false;
};

KindInSource in_source(KernelKind kind) {
  switch (kind) {
    case KernelKind::forward:
      return {"forward", "forward", "ForwardArguments", true};
    case KernelKind::backward:
      return {"backward", "backward", "BackwardArguments", true};
    case KernelKind::wide_backward:
      return {"wide_backward", "wide_backward", "BackwardArguments", true};
    case KernelKind::backward_query:
      return {"backward_query", "backward_query", "BackwardQueryArguments", true};
    case KernelKind::key_schedule:
      return {"key_schedule", "key_schedule", "BackwardArguments"};
    case KernelKind::round_grad_query:
      return {"round_grad_query", "grad_query_sums", "BackwardArguments"};
    case KernelKind::reduce:
      return {"reduce", "reduce", "ReduceArguments"};
    case KernelKind::check_offsets:
      return {"check_offsets", "check_offsets", "CheckOffsetsArguments"};
  }
  return {};
}

/// The same of a pass of backward.
struct PassInSource {
  std::string_view name;
  std::string_view activation;  ///< f and f'
};

PassInSource in_source(hopper::BackwardPass pass) {
  switch (pass) {
    case hopper::BackwardPass::only:
      return {"only", "::ActivationWithDerivative"};
    case hopper::BackwardPass::first:
      return {"first", "::UnguardedActivationWithDerivative"};
    case hopper::BackwardPass::again:
      return {"again",
              "gdpa::hopper::GuardedWhereNeeded<::UnguardedActivationWithDerivative, ::ActivationWithDerivative>"};
  }
  return {};
}

std::string_view type_of(GpuElement element) {
  switch (element) {
    case GpuElement::bfloat16:
      return "BFloat16";
    case GpuElement::float16:
      return "Float16";
    case GpuElement::float32:
      return "Float32";
    case GpuElement::tensor_float32:
      return "TensorFloat32";
  }
  return "";
}

/// The members that the kernels of each kind ask their configuration for.
std::string config_of(const KernelSpec& kernel, const activation::Function& function) {
  if (kernel.kind == KernelKind::check_offsets) return "struct Config {};\n";
  std::string text = fmt::format("struct Config {{\n  using Element = gdpa::{};\n", type_of(kernel.element));
  const auto number = [&](std::string_view name, int value) {
    text += fmt::format("  static constexpr int {} = {};\n", name, value);
  };
  const auto flag = [&](std::string_view name, bool value) {
    text += fmt::format("  static constexpr bool {} = {};\n", name, value);
  };
  flag("aligned", kernel.aligned);
  if (kernel.kind == KernelKind::reduce) {
    number("columns", kernel.head_dim);
    return text + "};\n";
  }
  const bool is_forward = kernel.kind == KernelKind::forward;
  if (has_function(kernel.kind)) {
    text += fmt::format("  using Activation = {};\n", is_forward ? "::Activation" : in_source(kernel.pass).activation);
  }
  number("head_dim", kernel.head_dim);
  number("head_dim_v", kernel.head_dim_v);
  number("tile_queries", kernel.tile_queries);
  number("tile_keys", kernel.tile_keys);
  number("stages", kernel.stages);
  const auto key_gradients = [&] {
    flag("computes_grad_key", kernel.wants_grad_key);
    flag("computes_grad_value", kernel.wants_grad_value);
  };
  if (kernel.family == KernelFamily::hopper) {
    if (!is_forward) {
      flag("computes_grad_query", kernel.wants_grad_query);
      key_gradients();
      flag("keys_shared", kernel.keys_shared);
      flag("sums_begun", kernel.sums_begun);
      flag("ordered", kernel.ordered);
      return text + fmt::format("  static constexpr auto pass = gdpa::hopper::BackwardPass::{};\n}};\n",
                                in_source(kernel.pass).name);
    }
    number("query_stages", kernel.query_stages);
    flag("query_in_registers", kernel.query_in_registers);
    // A product with Q saves a product with each score. fp16 would lose small elements of Q altogether.
    flag("scales_query", kernel.query_in_registers && kernel.scales_scores && kernel.element == GpuElement::bfloat16 &&
                             kernel.accuracy == Accuracy::fast &&
                             activation::tolerates_rounded_query(function.value()));
  }
  number("ctas", kernel.ctas);
  if (kernel.kind == KernelKind::backward) {
    number("key_warps", kernel.warps);
    number("column_warps", kernel.column_warps);
    flag("reduce_grad_query", kernel.reduce_grad_query);
    key_gradients();
    flag("keys_shared", kernel.keys_shared);
  } else {
    number("warps", kernel.warps);
    number("column_warps", kernel.column_warps);
    if (kernel.kind == KernelKind::backward_query) flag("queries_shared", kernel.queries_shared);
  }
  return text + "};\n";
}

}  // namespace

bool has_function(KernelKind kind) { return in_source(kind).has_function; }

std::string kernel_source(const KernelSpec& kernel, const activation::Function& function) {
  const std::string_view family = name_of(kernel.family);
  const KindInSource kind = in_source(kernel.kind);
  const activation::ForwardForm form{kernel.scales_scores, kernel.element == GpuElement::float16};
  return fmt::format(
      "{10}#include \"{7}/{9}.cuh\"\n\n"
      "{1}\n{2}\n"
      "extern \"C\" __constant__ int {3} = gdpa::{7}::{0}_threads<Config>;\n"
      "extern \"C\" __constant__ int {4} = gdpa::{7}::{0}_shared_bytes<Config>;\n"
      "extern \"C\" __global__ void __launch_bounds__(gdpa::{7}::{0}_threads<Config>, {5})\n"
      "{6}(const __grid_constant__ gdpa::{7}::{8} arguments) {{\n"
      "  gdpa::{7}::{0}<Config>(arguments);\n"
      "}}\n",
      kind.name, kind.has_function ? activation::cuda_source(function, kernel.accuracy, form) : std::string(),
      config_of(kernel, function), SourceNames::threads, SourceNames::shared_bytes, kernel.ctas, SourceNames::kernel,
      family, kind.arguments, kind.header, has_random_delays(kernel) ? "#define GDPA_RANDOM_DELAYS\n\n" : "");
}

std::string describe(const KernelSpec& kernel) {
  if (kernel.kind == KernelKind::check_offsets) return std::string(in_source(kernel.kind).name);
  std::string text = fmt::format("{}: {} {} d={}", name_of(kernel.family), in_source(kernel.kind).name,
                                 type_of(kernel.element), kernel.head_dim);
  if (kernel.kind == KernelKind::reduce) return text;
  if (has_function(kernel.kind) && kernel.accuracy == Accuracy::exact) text += " exact";
  if (kernel.pass == hopper::BackwardPass::again) text += " again";
  if (!kernel.wants_grad_query) text += " without dQ";
  if (!kernel.wants_grad_key) text += " without dK";
  if (!kernel.wants_grad_value) text += " without dV";
  if (has_random_delays(kernel)) text += " delayed";
  return text + fmt::format(" d_v={} tile {}x{}, {} warps, {} stages", kernel.head_dim_v, kernel.tile_queries,
                            kernel.tile_keys, kernel.warps * kernel.column_warps, kernel.stages);
}

}  // namespace gdpa::cuda
