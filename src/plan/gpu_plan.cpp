// The GPU plan; see gpu_plan.h.
#include "plan/gpu_plan.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>

#include "definition/divide.h"
#include "expression/rewrite/degree.h"
#include "plan/thresholds.h"

namespace gdpa::plan {
namespace {

std::size_t combine(std::size_t hash, std::initializer_list<int> members) {
  for (const int member : members) hash = (hash ^ static_cast<std::size_t>(member)) * 0x9e3779b97f4a7c15U;
  return hash;
}

std::size_t combine(std::size_t hash, const PortableSpec& of) {
  const NormSpec& norm = of.norm;
  return combine(hash, {of.column_warps, int{of.reduce_grad_query}, int{of.queries_shared}, int{norm.is_layer},
                        int{norm.weight_is_float32}, int{norm.has_weight}, int{norm.has_bias}, int{norm.has_gate},
                        int{norm.has_residual}, int{norm.computes_x}, int{norm.computes_gate},
                        int{norm.computes_weight}, int{norm.computes_bias}});
}

std::size_t combine(std::size_t hash, const HopperSpec& of) {
  return combine(hash, {of.query_stages, int{of.query_in_registers}, of.box_keys, static_cast<int>(of.bias_tile),
                        int{of.prefetches_bias}, int{of.stages_lookups}, int{of.has_dq_semaphores}, int{of.ordered},
                        int{of.scales_entries}, int{of.by_heads}, int{of.takes_head_factors},
                        int{of.takes_constant_factors}, int{of.may_take_scale}, static_cast<int>(of.pass),
                        of.sum_elements, static_cast<int>(of.gradients), int{of.own_elements}});
}

}  // namespace

bool has_function(KernelKind kind) {
  return kind == KernelKind::forward || kind == KernelKind::backward || kind == KernelKind::wide_backward ||
         kind == KernelKind::backward_query || kind == KernelKind::parameter_gradients ||
         kind == KernelKind::check_indices;
}

bool has_mask(KernelKind kind) {
  return has_function(kind) || kind == KernelKind::key_schedule || kind == KernelKind::round_grad_query ||
         kind == KernelKind::complete_terms;
}

bool writes_lists(KernelKind kind) {
  return kind == KernelKind::locate_lists || kind == KernelKind::list_key_tiles || kind == KernelKind::list_query_tiles;
}

bool is_norm(KernelKind kind) {
  return kind == KernelKind::norm || kind == KernelKind::norm_backward || kind == KernelKind::norm_reduce;
}

bool has_no_config(KernelKind kind) {
  return kind == KernelKind::check_offsets || kind == KernelKind::locate_sequences ||
         kind == KernelKind::group_entries || kind == KernelKind::find_overlap || kind == KernelKind::clear_gaps;
}

std::size_t hash_of(const KernelSpec& kernel) {
  const std::size_t hash = combine(kernel.of_family.index(), {static_cast<int>(kernel.kind),
                                                              static_cast<int>(kernel.element),
                                                              kernel.head_dim,
                                                              kernel.head_dim_v,
                                                              kernel.tile_queries,
                                                              kernel.tile_keys,
                                                              kernel.warps,
                                                              kernel.stages,
                                                              kernel.ctas,
                                                              int{kernel.aligned},
                                                              int{kernel.has_pages},
                                                              int{kernel.adds_query},
                                                              int{kernel.keys_shared},
                                                              int{kernel.has_batch_map},
                                                              int{kernel.has_output_offsets},
                                                              int{kernel.owns_rows},
                                                              static_cast<int>(kernel.for_overlap),
                                                              int{kernel.wants_grad_query},
                                                              int{kernel.wants_grad_key},
                                                              int{kernel.wants_grad_value},
                                                              int{kernel.scales_scores},
                                                              int{kernel.has_row_scale},
                                                              static_cast<int>(kernel.tensor_types),
                                                              static_cast<int>(kernel.mask_types),
                                                              kernel.tile_lists,
                                                              static_cast<int>(kernel.wanted_parameters),
                                                              static_cast<int>(kernel.parameter_sum),
                                                              static_cast<int>(kernel.accuracy)});
  return std::visit([hash](const auto& of_family) { return combine(hash, of_family); }, kernel.of_family);
}

FunctionRegisters registers_of(const activation::Program& program, Accuracy accuracy) {
  using activation::Operation;
  const bool is_long = std::any_of(program.steps.begin(), program.steps.end(), [&](const activation::Step& step) {
    switch (step.operation) {
      case Operation::power:
      case Operation::expm1:
      case Operation::log1p:
        return true;  // no fast form exists
      case Operation::erf:
      case Operation::softplus:
      case Operation::sin:
      case Operation::cos:
        return accuracy == Accuracy::exact;
      default:
        return false;
    }
  });
  return is_long ? FunctionRegisters::many : FunctionRegisters::few;
}

bool has_few_scores(const Problem& problem) {
  if (problem.deterministic) return false;
  const bool is_dense = problem.query_form == Form::dense && problem.key_form == Form::dense;
  const int64_t batch = std::max<int64_t>(1, problem.batch), key_entries = std::max<int64_t>(1, problem.key_entries());
  const int64_t rows_q = problem.rows_q * (problem.query_form == Form::shared ? batch : 1);
  const int64_t most_keys =
      is_dense ? divide_up(problem.rows_k, key_entries) : problem.rows_k;  // that a query can have
  const auto scores = static_cast<double>(problem.heads_q) * static_cast<double>(rows_q) *
                      static_cast<double>(most_keys);  // exact up to 2^53, and never overflows
  return scores <= thresholds::scores_of_exact_calls;
}

Accuracy accuracy_of(const Problem& problem) {
  if (problem.dtype == DType::float32) return Accuracy::exact;
  return has_few_scores(problem) ? Accuracy::exact : problem.accuracy;
}

int64_t padded_columns(int64_t columns) { return divide_up(columns, column_group) * column_group; }

namespace {

/// Makes the kernels of backward compute with Q K^T if f is homogeneous. Coefficients contain the scale only if all its
/// powers in them are normal numbers of fp32.
void take_scale_out_of_backward(GpuPlan& plan, bool is_homogeneous, double scale) {
  constexpr double least = 0x1p-10, most = 0x1p10;
  const bool is_moderate = std::fabs(scale) >= least && std::fabs(scale) <= most;
  for (GpuStep& step : plan.steps) {
    KernelSpec& kernel = step.kernel;
    if (kernel.family() != KernelFamily::hopper || !kernel.hopper().takes_constant_factors) continue;
    HopperSpec& spec = kernel.hopper();
    spec.may_take_scale = spec.may_take_scale && is_moderate;
    const bool may_be_unscaled = spec.pass == hopper::Pass::only && spec.gradients != FusedGradients::of_numbers;
    kernel.scales_scores = !(is_homogeneous && may_be_unscaled);
  }
}

}  // namespace

void take_scale_out(GpuPlan& plan, const activation::Program& value, double scale) {
  // bfloat16 and fp32 reach 2^128. With a factor within these bounds, neither P nor an accumulator overflows if the
  // result is below 2^96, and neither vanishes if it is above 2^-94. fp16 ends at 65504, which scores of head dim 128
  // reach.
  constexpr double least = 0x1p-32, most = 0x1p32;
  const std::optional<double> degree = activation::degree_of(value);
  const auto suits = [](double factor) { return factor >= least && factor <= most; };
  const double factor = degree && scale > 0 ? std::pow(scale, *degree) : 0;
  const KernelSpec& kernel = plan.steps.front().kernel;
  if (kernel.kind != KernelKind::forward) {
    return take_scale_out_of_backward(plan, suits(factor) && suits(factor / scale), scale);
  }
  if (kernel.element == GpuElement::float16 || !suits(factor)) return;
  for (GpuStep& step : plan.steps) step.kernel.scales_scores = false;
  plan.output_factor = factor;
}

}  // namespace gdpa::plan
