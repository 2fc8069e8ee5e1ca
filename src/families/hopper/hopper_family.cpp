// The Hopper kernels: WGMMA, TMA and warp specialisation, for compute capability 9.0.
#include <string_view>

#include "cuda/tensor_maps.h"
#include "expression/lookup.h"
#include "families/family.h"
#include "families/hopper/hopper_plan.h"
#include "families/planning.h"
#include "families/registry.h"
#include "hopper/arguments.cuh"

namespace gdpa::families {
namespace {

using cuda::map_operand;
using cuda::Tensor;
using plan::KernelKind;

std::string_view in_source(BiasTile tile) {
  switch (tile) {
    case BiasTile::none:
      return "none";
    case BiasTile::aligned:
      return "aligned";
    case BiasTile::unaligned:
      return "unaligned";
  }
  return {};
}

/// The names of a pass, and of f and f' in this pass of backward, in a generated source.
struct PassInSource {
  std::string_view name;
  std::string_view activation;
};

PassInSource in_source(hopper::Pass pass) {
  switch (pass) {
    case hopper::Pass::only:
      return {"only", "::ActivationWithDerivative"};
    case hopper::Pass::first:
      return {"first", "::UnguardedActivationWithDerivative"};
    case hopper::Pass::second:
      return {"second",
              "gdpa::hopper::GuardedWhereNeeded<::UnguardedActivationWithDerivative, ::ActivationWithDerivative>"};
  }
  return {};
}

/// Adds the struct Config::Gradients of backward.
void add_gradients(ConfigText& config, const plan::KernelSpec& kernel) {
  switch (kernel.hopper().gradients) {
    case plan::FusedGradients::none:
      return config.type("Gradients", "gdpa::hopper::NoGradients");
    case plan::FusedGradients::of_numbers:
      return config.type("Gradients", "gdpa::hopper::NumberGradients<Activation, Sum>");
    case plan::FusedGradients::of_scores:
      if (!plan::is_term(kernel.parameter_sum)) {
        return config.type("Gradients", "gdpa::hopper::ScoreGradients<::TensorGradients>");
      }
      return config.type_of_header("Gradients", "gdpa::hopper::StoredTerms<::StoredTensor>", "hopper/stored_terms.cuh");
  }
}

/// The arguments of a kernel whose CTAs own query tiles. `output` has the rows of O.
hopper::QueryMajorArguments query_major_arguments(const PlannedCall& call, const plan::KernelSpec& kernel,
                                                  const hopper::TileDistribution& tiles, Tensor output) {
  const Params& params = call.arguments.params;
  const auto map = [&](Tensor tensor, int box_rows) { return map_operand(call.problem, params, tensor, box_rows); };
  hopper::QueryMajorArguments arguments{};
  arguments.common = call.arguments;
  arguments.scale = static_cast<float>(params.scale);
  arguments.tiles = tiles;
  arguments.query = map(Tensor::query, hopper::warpgroup_rows);
  const int box_keys = kernel.has_pages ? kernel.hopper().box_keys : kernel.tile_keys;
  arguments.key = map(Tensor::key, box_keys);
  arguments.value = map(Tensor::value, box_keys);
  arguments.output = map(output, hopper::warpgroup_rows);
  return arguments;
}

/// The arguments of all kernels of backward.
hopper::BackwardArguments backward_arguments(const PlannedCall& call) {
  const plan::KernelSpec& kernel = call.plan.steps.front().kernel;  // all have the same tiles
  const plan::HopperPlan& plan = call.plan.hopper();
  const Params& params = call.arguments.params;
  const auto map = [&](Tensor tensor, int box_rows, int box_columns = hopper::box_columns) {
    return map_operand(call.problem, params, tensor, box_rows, box_columns);
  };
  hopper::BackwardArguments arguments{};
  arguments.common = call.arguments;
  arguments.scale = static_cast<float>(params.scale);
  arguments.query = map(Tensor::query, kernel.tile_queries);
  arguments.key = map(Tensor::key, kernel.tile_keys);
  arguments.value = map(Tensor::value, kernel.tile_keys);
  arguments.grad_output = map(Tensor::grad_output, kernel.tile_queries);
  arguments.grad_query =
      map(Tensor::grad_query, hopper::warpgroup_rows, hopper::grad_query_columns(kernel.tile_queries, kernel.head_dim));
  if (call.problem.add_query) {
    arguments.addend = map(Tensor::grad_output, hopper::warpgroup_rows,
                           hopper::grad_query_columns(kernel.tile_queries, kernel.head_dim));
  }
  arguments.grad_key = map(Tensor::grad_key, hopper::warpgroup_rows);
  arguments.grad_value = map(Tensor::grad_value, hopper::warpgroup_rows);
  arguments.whole_keys = plan.whole_keys;
  arguments.direct_keys = plan.direct_keys;
  arguments.queries_shared = has_shared_queries(call.problem);
  arguments.heads_per_group = static_cast<int>(plan.heads_per_group);
  arguments.slots = static_cast<unsigned>(plan.slots);
  arguments.slots_taken = call.at<unsigned>(plan.slot_counter);
  arguments.non_finite = arguments.slots_taken + 1;
  arguments.offsets_fall = call.at<int>(plan.slot_counter) + 2;
  arguments.key_tiles = call.at<std::byte>(plan.key_tiles);
  if (plan.segments >= 0) arguments.segments = call.at<std::byte>(plan.segments);
  arguments.most_key_tiles = static_cast<int>(plan.most_key_tiles);
  arguments.masks_of_heads = call.problem.mask_depends_on_head;
  if (plan.dq_semaphores >= 0) {
    arguments.dq_semaphores = call.at<int>(plan.dq_semaphores);
    arguments.semaphores_per_head = static_cast<int>(plan.semaphores_per_head);
  }
  arguments.prepares_grad_query = plan.prepares_grad_query;
  if (call.plan.workspace.grad_query >= 0) {
    arguments.grad_query_accumulators = call.at<float>(call.plan.workspace.grad_query);
  }
  return arguments;
}

class HopperFamily final : public Family {
 public:
  std::string_view name() const override { return "hopper"; }
  std::string_view title() const override { return "Hopper"; }

  std::string why_not(const PlanRequest& request) const override { return why_not_hopper(request); }

  plan::GpuPlan plan(const PlanRequest& request) const override { return hopper_plan(request); }

  std::string why_not_parameter_gradients(const PlanRequest& request) const override {
    return why_not_hopper_parameter_gradients(request);
  }

  void plan_parameter_gradients(const PlanRequest& request, const Params& params, const activation::Function& function,
                                plan::KernelSpec kernel, plan::GpuPlan& plan) const override {
    add_hopper_parameter_gradients(request, params, function, kernel, plan);
  }

  std::string_view activation(const plan::KernelSpec& kernel) const override {
    if (kernel.kind == KernelKind::forward) return "::Activation";
    const bool is_with_gradients = kernel.hopper().gradients == plan::FusedGradients::of_numbers;
    return is_with_gradients ? "::ActivationWithGradients" : in_source(kernel.hopper().pass).activation;
  }

  void write_config(ConfigText& config, const plan::KernelSpec& kernel,
                    const activation::Function& function) const override {
    const plan::HopperSpec& spec = kernel.hopper();
    const std::string layout = kernel.has_pages       ? fmt::format("PagedLayout<{}>", spec.box_keys)
                               : kernel.has_batch_map ? "MappedLayout"
                                                      : "PackedLayout";
    config.type_of_header("Layout", layout_text("gdpa::hopper::", layout, kernel),
                          kernel.has_pages ? "hopper/paged_layout.cuh" : "hopper/packed_layout.cuh");
    if (kernel.kind == KernelKind::parameter_gradients) {
      config.number("query_stages", spec.query_stages);
      config.number("sum_elements", spec.sum_elements);
      return;
    }
    const auto write_pass = [&] {
      config.constant("auto", "pass", fmt::format("gdpa::hopper::Pass::{}", in_source(spec.pass).name));
    };
    if (kernel.kind == KernelKind::forward) {
      write_pass();
      config.number("query_stages", spec.query_stages);
      config.flag("query_in_registers", spec.query_in_registers);
      config.constant("auto", "bias_tile", fmt::format("gdpa::BiasTile::{}", in_source(spec.bias_tile)));
      config.flag("stages_lookups", spec.stages_lookups);
      return;
    }
    if (kernel.kind == KernelKind::backward) {
      add_gradients(config, kernel);
      config.flag("prefetches_bias", spec.prefetches_bias);
      // The second pass rarely runs, and its function leaves no registers for the forms of lookups.
      config.flag("has_lookups",
                  spec.pass != hopper::Pass::second && activation::has_lookup_forms(function, kernel.tensor_types));
    }
    if (kernel.kind == KernelKind::key_schedule) {
      config.number("cleared_parameters", static_cast<int>(kernel.wanted_parameters));
      config.flag("by_heads", spec.by_heads);
    }
    config.flag("computes_grad_query", kernel.wants_grad_query);
    config.flag("computes_grad_key", kernel.wants_grad_key);
    config.flag("computes_grad_value", kernel.wants_grad_value);
    config.flag("keys_shared", kernel.keys_shared);
    config.flag("has_dq_semaphores", spec.has_dq_semaphores);
    config.flag("ordered", spec.ordered);
    config.flag("scales_entries", spec.scales_entries);
    write_pass();
  }

  void launch(const PlannedCall& call, StepLauncher& launcher) const override {
    if (call.problem.direction == Direction::forward) {
      const plan::HopperPlan& plan = call.plan.hopper();
      hopper::ForwardArguments arguments{
          query_major_arguments(call, call.plan.steps.front().kernel, plan.tiles, Tensor::output),
          plan.found_nan >= 0 ? call.at<int>(plan.found_nan) : nullptr};
      for (std::size_t step = 0; step < call.plan.steps.size(); ++step) {
        if (plan.tiles_taken >= 0) arguments.tiles_taken = call.at<unsigned>(plan.tiles_taken) + step;
        launcher.launch_next(&arguments);
      }
      return;
    }
    hopper::BackwardArguments arguments = backward_arguments(call);
    for (std::size_t step = 0; step < call.plan.steps.size(); ++step) launcher.launch_next(&arguments);
  }

  void launch_parameter_gradients(const PlannedCall& call, StepLauncher& launcher) const override {
    hopper::ParameterGradientsArguments arguments = query_major_arguments(
        call, call.plan.parameter_steps.front().kernel, call.plan.parameter_tiles, Tensor::grad_output);
    launcher.launch_next(&arguments);
  }

  bool has_random_delays() const override { return true; }
};

}  // namespace

const Family& hopper_family() {
  static const HopperFamily family;
  return family;
}

}  // namespace gdpa::families
