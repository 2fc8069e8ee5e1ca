// See source.h.
#include "cuda/source.h"

#include <fmt/format.h>

#include <bit>
#include <cstddef>
#include <optional>
#include <string_view>
#include <variant>

#include "codegen/cuda_bounds.h"
#include "codegen/cuda_condition.h"
#include "codegen/cuda_gradients.h"
#include "codegen/cuda_inputs.h"
#include "definition/environment.h"
#include "families/family.h"

namespace gdpa::cuda {
namespace {

using plan::GpuElement;
using plan::has_function;
using plan::KernelKind;
using plan::KernelSpec;

/// Returns whether GDPA_RANDOM_DELAYS is 1. The variable is read once. The stress test sets it to add a random delay at
/// every wait, arrival and copy (kernels/common/random_delay.cuh).
bool has_random_delays(const KernelSpec& kernel) {
  static const bool is_asked = is_set("GDPA_RANDOM_DELAYS");
  return is_asked && families::family_of(kernel.family()).has_random_delays();
}

/// The names of a kind of kernel in the device code.
struct KindInSource {
  std::string_view name;
  std::string_view header;     ///< the file of the kernel
  std::string_view arguments;  ///< the struct of its arguments
};

KindInSource in_source(KernelKind kind) {
  switch (kind) {
    case KernelKind::forward:
      return {"forward", "forward", "ForwardArguments"};
    case KernelKind::backward:
      return {"backward", "backward", "BackwardArguments"};
    case KernelKind::wide_backward:
      return {"wide_backward", "wide_backward", "BackwardArguments"};
    case KernelKind::backward_query:
      return {"backward_query", "backward_query", "BackwardQueryArguments"};
    case KernelKind::parameter_gradients:
      return {"parameter_gradients", "parameter_gradients", "ParameterGradientsArguments"};
    case KernelKind::round_parameters:
      return {"round_parameters", "round_parameters", "RoundParametersArguments"};
    case KernelKind::complete_terms:
      return {"complete_terms", "complete_terms", "CompleteTermsArguments"};
    case KernelKind::key_schedule:
      return {"key_schedule", "key_schedule", "BackwardArguments"};
    case KernelKind::round_grad_query:
      return {"round_grad_query", "grad_query_accumulators", "BackwardArguments"};
    case KernelKind::reduce:
      return {"reduce", "reduce", "ReduceArguments"};
    case KernelKind::check_offsets:
      return {"check_offsets", "check_offsets", "CheckOffsetsArguments"};
    case KernelKind::check_indices:
      return {"check_indices", "check_indices", "CheckIndicesArguments"};
    case KernelKind::locate_sequences:
      return {"locate_sequences", "locate_sequences", "LocateSequencesArguments"};
    case KernelKind::group_entries:
      return {"group_entries", "group_entries", "GroupEntriesArguments"};
    case KernelKind::find_overlap:
      return {"find_overlap", "find_overlap", "FindOverlapArguments"};
    case KernelKind::clear_gaps:
      return {"clear_gaps", "clear_gaps", "ClearGapsArguments"};
    case KernelKind::locate_lists:
      return {"locate_lists", "list_tiles", "ListTilesArguments"};
    case KernelKind::list_key_tiles:
      return {"list_key_tiles", "list_tiles", "ListTilesArguments"};
    case KernelKind::list_query_tiles:
      return {"list_query_tiles", "list_tiles", "ListTilesArguments"};
    case KernelKind::norm:
      return {"norm", "norm", "NormArguments"};
    case KernelKind::norm_backward:
      return {"norm_backward", "norm_backward", "NormBackwardArguments"};
    case KernelKind::norm_reduce:
      return {"norm_reduce", "norm_reduce", "NormReduceArguments"};
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

std::string_view sum_of(const KernelSpec& kernel) {
  switch (kernel.parameter_sum) {
    case plan::ParameterSum::float32:
      return "gdpa::FloatSum";
    case plan::ParameterSum::float64:
      return "gdpa::DoubleSum";
    case plan::ParameterSum::bfloat16_term:
    case plan::ParameterSum::float16_term:
      return "gdpa::FloatSum";  // of elements with several terms
    case plan::ParameterSum::exact:
      return "gdpa::ExactSum";
  }
  return "";
}

/// The type of the elements in which backward stores terms.
std::string_view element_of_terms(const KernelSpec& kernel) {
  return kernel.parameter_sum == plan::ParameterSum::bfloat16_term ? "gdpa::BFloat16" : "gdpa::Float16";
}

/// Whether the elements of e, of a function g(s + e), leave enough registers for a product with Q: they are lookups or
/// elements of 16 bits in shared memory.
bool has_registers_for_factor(const KernelSpec& kernel, const activation::Function& function) {
  if (function.of_sum() == nullptr || kernel.hopper().stages_lookups) return true;
  if (kernel.hopper().bias_tile == BiasTile::none) return false;
  const std::optional<std::size_t> read = activation::tile_read(function, kernel.tensor_types);
  const auto tensor = function.inputs()[read.value()].tensor;
  return static_cast<NumberType>(kernel.tensor_types >> (4 * tensor) & 7U) != NumberType::float32;
}

/// Whether a kernel can multiply Q in place of each score: in registers, and in bfloat16, because fp16 would lose small
/// elements of Q altogether. A query that is added to the output stays as it is.
bool may_multiply_query(const KernelSpec& kernel, const activation::Function& function) {
  const auto* hopper = std::get_if<plan::HopperSpec>(&kernel.of_family);
  return kernel.kind == KernelKind::forward && hopper != nullptr && hopper->query_in_registers && !kernel.adds_query &&
         kernel.element == GpuElement::bfloat16 && kernel.accuracy == Accuracy::fast &&
         has_registers_for_factor(kernel, function);
}

/// Returns the source of the function in a kernel.
std::string function_of(const KernelSpec& kernel, const activation::Function& function) {
  if (!has_function(kernel.kind)) return {};
  if (kernel.kind == KernelKind::check_indices) return {};
  if (kernel.kind == KernelKind::parameter_gradients) {
    const auto* hopper = std::get_if<plan::HopperSpec>(&kernel.of_family);
    const bool has_thread_sums = hopper != nullptr && hopper->sum_elements > 0;
    return activation::gradients_source(function, kernel.tensor_types, kernel.wanted_parameters,
                                        {sum_of(kernel), kernel.accuracy, has_thread_sums ? kernel.warps * 32 : 0});
  }
  const auto* hopper = std::get_if<plan::HopperSpec>(&kernel.of_family);
  const plan::FusedGradients gradients = hopper != nullptr ? hopper->gradients : plan::FusedGradients::none;
  const bool are_of_numbers = gradients == plan::FusedGradients::of_numbers;
  const activation::ForwardForm form{.scales_scores = kernel.scales_scores,
                                     .may_multiply_query = may_multiply_query(kernel, function),
                                     .has_fp16_p = kernel.element == GpuElement::float16,
                                     .takes_head_factors = hopper != nullptr && hopper->takes_head_factors,
                                     .takes_constant_factors = hopper != nullptr && hopper->takes_constant_factors,
                                     .may_take_scale = hopper != nullptr && hopper->may_take_scale,
                                     .wanted_numbers = are_of_numbers ? kernel.wanted_parameters : 0};
  std::string text = activation::cuda_source(function, kernel.accuracy, form, kernel.tensor_types);
  if (gradients == plan::FusedGradients::of_scores) {
    text += plan::is_term(kernel.parameter_sum)
                ? activation::stored_terms_source(function, kernel.wanted_parameters, element_of_terms(kernel))
                : activation::score_gradients_source(function, kernel.tensor_types, kernel.wanted_parameters,
                                                     sum_of(kernel), hopper->own_elements);
  }
  return text;
}

/// Returns the source of the index checks of the function and of the mask.
std::string index_checks_of(const KernelSpec& kernel, const Expressions& expressions) {
  if (kernel.kind != KernelKind::check_indices) return {};
  std::string text = "#include \"common/index.cuh\"\n\n";
  text += activation::index_check_source("FunctionIndices", expressions.function, kernel.tensor_types,
                                         activation::Expression::function);
  if (expressions.mask != nullptr) {
    text += activation::index_check_source("MaskIndices", *expressions.mask, kernel.mask_types,
                                           activation::Expression::mask);
  }
  return text;
}

void add_mask(families::ConfigText& config, const KernelSpec& kernel, const Expressions& expressions) {
  if (expressions.mask != nullptr) {
    config.type_of_header("Mask", fmt::format("gdpa::ExpressionMask<::Condition, {}>", kernel.tile_lists),
                          "common/expression_mask.cuh");
  } else {
    config.type_of_header("Mask", "gdpa::WindowMask", "common/window_mask.cuh");
  }
}

/// Returns the struct Config of a kernel of norms.
std::string config_of_norm(const KernelSpec& kernel) {
  const plan::NormSpec& spec = kernel.portable().norm;
  families::ConfigText config;
  config.type("Element", fmt::format("gdpa::{}", type_of(kernel.element)));
  config.type("Weight",
              fmt::format("gdpa::{}", type_of(spec.weight_is_float32 ? GpuElement::float32 : kernel.element)));
  config.number("columns", kernel.head_dim);
  config.flag("aligned", kernel.aligned);
  config.flag("is_layer", spec.is_layer);
  config.flag("has_weight", spec.has_weight);
  config.flag("has_bias", spec.has_bias);
  config.flag("has_gate", spec.has_gate);
  config.flag("has_residual", spec.has_residual);
  config.flag("computes_x", spec.computes_x);
  config.flag("computes_gate", spec.computes_gate);
  config.flag("computes_weight", spec.computes_weight);
  config.flag("computes_bias", spec.computes_bias);
  return config.text();
}

/// Returns the struct Config of a kernel: the members of all families, and the members of the kernel's family.
std::string config_of(const KernelSpec& kernel, const Expressions& expressions) {
  const activation::Function& function = expressions.function;
  families::ConfigText config;
  if (plan::has_no_config(kernel.kind)) return config.text();
  if (plan::is_norm(kernel.kind)) return config_of_norm(kernel);
  if (kernel.kind == KernelKind::round_parameters) {
    config.type("Sum", sum_of(kernel));
    return config.text();
  }
  if (kernel.kind == KernelKind::complete_terms) {
    config.type("Element", element_of_terms(kernel));
    config.number("tensor", std::countr_zero(kernel.wanted_parameters));
    config.number("tile_queries", kernel.tile_queries);
    config.number("tile_keys", kernel.tile_keys);
    add_mask(config, kernel, expressions);
    families::family_of(kernel.family()).write_config(config, kernel, function);
    return config.text();
  }
  if (plan::writes_lists(kernel.kind)) {
    if (kernel.kind == KernelKind::list_key_tiles) config.type("Condition", "::ConditionBounds");
    config.number("lists", kernel.tile_lists);
    families::family_of(kernel.family()).write_config(config, kernel, function);
    return config.text();
  }
  if (kernel.kind == KernelKind::check_indices) {
    add_mask(config, kernel, expressions);
    config.type("FunctionIndices", "::FunctionIndices");
    config.type("MaskIndices", expressions.mask != nullptr ? "::MaskIndices" : "gdpa::portable::NoIndices");
    families::family_of(kernel.family()).write_config(config, kernel, function);
    return config.text();
  }
  config.type("Element", fmt::format("gdpa::{}", type_of(kernel.element)));
  config.flag("aligned", kernel.aligned);
  if (kernel.kind == KernelKind::reduce) {
    config.number("columns", kernel.head_dim);
    config.flag("adds", kernel.adds_query);
    return config.text();
  }
  const families::Family& family = families::family_of(kernel.family());
  if (kernel.kind == KernelKind::parameter_gradients) {
    config.type("Gradients", "::Gradients");
  } else if (has_function(kernel.kind)) {
    config.type("Activation", family.activation(kernel));
  }
  if (kernel.wanted_parameters != 0) config.type("Sum", sum_of(kernel));
  add_mask(config, kernel, expressions);
  if (kernel.kind == KernelKind::parameter_gradients) {
    // Gradients reads the inputs itself.
  } else if (has_function(kernel.kind) && activation::has_inputs_at(function)) {
    config.type("Bias", "::Bias");
  } else {
    config.type_of_header("Bias", "gdpa::NoBias", "common/no_bias.cuh");
  }
  if (kernel.adds_query) {
    config.type_of_header("Epilogue", "gdpa::AddQueryEpilogue", "common/add_query_epilogue.cuh");
  } else if (kernel.has_row_scale) {
    config.type_of_header("Epilogue", "gdpa::RowScaleEpilogue", "common/row_scale_epilogue.cuh");
  } else {
    config.type_of_header("Epilogue", "gdpa::ScaleEpilogue", "common/scale_epilogue.cuh");
  }
  config.number("head_dim", kernel.head_dim);
  config.number("head_dim_v", kernel.head_dim_v);
  config.number("tile_queries", kernel.tile_queries);
  config.number("tile_keys", kernel.tile_keys);
  config.number("stages", kernel.stages);
  family.write_config(config, kernel, function);
  return config.text();
}

/// Returns the number of computing warps in a CTA.
int warps_of(const KernelSpec& kernel) {
  const auto* portable = std::get_if<plan::PortableSpec>(&kernel.of_family);
  return kernel.warps * (portable == nullptr ? 1 : portable->column_warps);
}

/// The wait for the previous kernel of the call, with which a kernel of Hopper begins.
struct Wait {
  std::string_view include;
  std::string_view statement;
};

Wait wait_of(const KernelSpec& kernel) {
  if (kernel.family() != plan::KernelFamily::hopper) return {};
  return {"#include \"hopper/dependent_launch.cuh\"\n", "  gdpa::hopper::wait_for_previous_kernel();\n"};
}

/// Returns the statement that ends a kernel which is not for the sequences of keys of the call.
std::string end_of_other_overlap(const KernelSpec& kernel) {
  if (kernel.for_overlap == plan::KeyOverlap::any) return {};
  const bool is_portable = kernel.family() == plan::KernelFamily::portable;
  return fmt::format("  if ((*arguments.{}keys_overlap != 0) != {}) return;\n", is_portable ? "" : "common.",
                     kernel.for_overlap == plan::KeyOverlap::some);
}

bool is_second_pass(const KernelSpec& kernel) {
  const auto* hopper = std::get_if<plan::HopperSpec>(&kernel.of_family);
  return hopper != nullptr && hopper->pass == hopper::Pass::second;
}

}  // namespace

bool evaluates_condition(KernelKind kind) { return plan::has_mask(kind) || kind == KernelKind::list_key_tiles; }

std::string kernel_source(const KernelSpec& kernel, const Expressions& expressions) {
  std::string condition;
  if (expressions.mask != nullptr && evaluates_condition(kernel.kind)) {
    condition = "#include \"common/fragment_columns.cuh\"\n#include \"common/index.cuh\"\n" +
                activation::condition_source(*expressions.mask, kernel.mask_types);
    if (kernel.kind == KernelKind::list_key_tiles) {
      condition = "#include \"common/bounds.cuh\"\n" + condition +
                  activation::condition_bounds_source(*expressions.mask, kernel.mask_types);
    }
  }
  const std::string_view family = families::family_of(kernel.family()).name();
  const KindInSource kind = in_source(kernel.kind);
  const Wait wait = wait_of(kernel);
  return fmt::format(
      "{10}#include \"{7}/{9}.cuh\"\n{12}\n"
      "{1}\n{2}\n"
      "extern \"C\" __constant__ int {3} = gdpa::{7}::{0}_threads<Config>;\n"
      "extern \"C\" __constant__ int {4} = gdpa::{7}::{0}_shared_bytes<Config>;\n"
      "extern \"C\" __global__ void __launch_bounds__(gdpa::{7}::{0}_threads<Config>, {5})\n"
      "{6}(const __grid_constant__ gdpa::{7}::{8} arguments) {{\n"
      "{13}{11}"
      "  gdpa::{7}::{0}<Config>(arguments);\n"
      "}}\n",
      kind.name, condition + index_checks_of(kernel, expressions) + function_of(kernel, expressions.function),
      config_of(kernel, expressions), SourceNames::threads, SourceNames::shared_bytes, kernel.ctas, SourceNames::kernel,
      family, kind.arguments, kind.header, has_random_delays(kernel) ? "#define GDPA_RANDOM_DELAYS\n\n" : "",
      end_of_other_overlap(kernel), wait.include, wait.statement);
}

std::string describe(const KernelSpec& kernel) {
  if (plan::has_no_config(kernel.kind) || kernel.kind == KernelKind::round_parameters ||
      kernel.kind == KernelKind::complete_terms || kernel.kind == KernelKind::check_indices ||
      plan::writes_lists(kernel.kind)) {
    return std::string(in_source(kernel.kind).name);
  }
  if (plan::is_norm(kernel.kind)) {
    return fmt::format("{}: {} {} of {} columns", families::family_of(kernel.family()).name(),
                       in_source(kernel.kind).name, type_of(kernel.element), kernel.head_dim);
  }
  std::string text = fmt::format("{}: {} {} d={}", families::family_of(kernel.family()).name(),
                                 in_source(kernel.kind).name, type_of(kernel.element), kernel.head_dim);
  if (kernel.adds_query) text += " with query";
  if (kernel.kind == KernelKind::reduce) return text;
  if (has_function(kernel.kind) && kernel.accuracy == Accuracy::exact) text += " exact";
  if (is_second_pass(kernel)) text += " second pass";
  if (kernel.has_pages) {
    const auto* hopper = std::get_if<plan::HopperSpec>(&kernel.of_family);
    text += hopper == nullptr ? " paged" : fmt::format(" paged in boxes of {}", hopper->box_keys);
  }
  if (kernel.has_batch_map) text += " mapped";
  if (kernel.for_overlap == plan::KeyOverlap::none) text += " if keys are apart";
  if (kernel.for_overlap == plan::KeyOverlap::some) text += " if keys overlap";
  if (kernel.has_row_scale) text += " scaled rows";
  if (!kernel.wants_grad_query) text += " without dQ";
  if (!kernel.wants_grad_key) text += " without dK";
  if (!kernel.wants_grad_value) text += " without dV";
  if (has_random_delays(kernel)) text += " delayed";
  return text + fmt::format(" d_v={} tile {}x{}, {} warps, {} stages", kernel.head_dim_v, kernel.tile_queries,
                            kernel.tile_keys, warps_of(kernel), kernel.stages);
}

}  // namespace gdpa::cuda
