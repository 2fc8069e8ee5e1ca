// See portable_plan.h. portable_tiles.cpp chooses the tiles.
#include "families/portable/portable_plan.h"

#include <algorithm>

#include "families/planning.h"
#include "families/portable/portable_tiles.h"

namespace gdpa::families {
namespace {

using plan::GpuPlan;
using plan::KernelKind;
using plan::KernelSpec;

/// Splits of the batch, so that the CTAs that own the tiles of a shared operand occupy all multiprocessors.
int64_t splits_for(const Side& side, int64_t heads, int64_t tile, const plan::Gpu& gpu, int ctas) {
  const int64_t owners = std::max<int64_t>(1, heads * divide_up(side.length(), tile));
  const int64_t wanted = divide_up(int64_t{2} * gpu.multiprocessors * ctas, owners);
  return std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, side.batch));
}

GpuPlan plan_portable_forward(const PlanRequest& request) {
  const Problem& problem = request.problem;
  GpuPlan plan;
  plan.reason = "one CTA owns a tile of queries and iterates over the keys";
  KernelSpec kernel = kernel_for(request, KernelKind::forward);
  kernel.adds_query = problem.add_query;
  choose_tiles(kernel, request.gpu, request.function);
  plan.steps.push_back({kernel, problem.heads_q * queries_of(problem).most_tiles(kernel.tile_queries, problem.batch)});
  return plan;
}

GpuPlan plan_portable_backward(const PlanRequest& request) {
  const Problem& problem = request.problem;
  const Side queries = queries_of(problem), keys = keys_of(problem);
  const bool keys_shared = has_shared_keys(problem), queries_shared = has_shared_queries(problem);
  const WantedGradients& wanted = problem.wanted;
  const bool wants_keys = wanted.key || wanted.value;
  // Additions of many batch entries to the few rows of a shared query would wait for each other.
  const bool has_query_kernel = wanted.query && (problem.deterministic || queries_shared || !wants_keys);
  const bool adds_to_query = wanted.query && !has_query_kernel;

  GpuPlan plan;
  plan.deterministic = !adds_to_query;
  plan.reason = has_query_kernel ? "dQ has a kernel of its own, which sums in one order"
                : adds_to_query  ? "one CTA owns a tile of keys and adds to dQ in fp32"
                                 : "one CTA owns a tile of keys, and dQ is not wanted";

  KernelSpec kernel = kernel_for(request, KernelKind::backward);
  kernel.portable().reduce_grad_query = adds_to_query;
  kernel.keys_shared = keys_shared;
  kernel.has_batch_map = problem.has_batch_map;
  kernel.wants_grad_key = wanted.key;
  kernel.wants_grad_value = wanted.value;
  choose_tiles(kernel, request.gpu, request.function);
  KernelSpec query_kernel = kernel_for(request, KernelKind::backward_query);
  query_kernel.portable().queries_shared = queries_shared;
  query_kernel.adds_query = problem.add_query;
  choose_tiles(query_kernel, request.gpu, request.function);
  if (keys_shared && wants_keys) {
    plan.splits = splits_for(keys, problem.heads_k, kernel.tile_keys, request.gpu, kernel.ctas);
  }
  const bool has_query_partials = has_query_kernel && queries_shared;
  if (has_query_partials) {
    plan.splits = splits_for(queries, problem.heads_q, query_kernel.tile_queries, request.gpu, query_kernel.ctas);
  }

  WorkspaceLayout layout(plan.workspace);
  if (adds_to_query) {
    plan.workspace.grad_query = layout.reserve_accumulators(problem.rows_q, problem.heads_q, problem.head_dim);
    layout.clear_reserved();
  }
  if (has_query_partials) {
    plan.workspace.grad_query =
        layout.reserve_accumulators(plan.splits * problem.rows_q, problem.heads_q, problem.head_dim);
  }
  plan.reduces_grad_query = adds_to_query || has_query_partials;
  if (keys_shared) layout.reserve_key_partials(problem, plan.splits);

  if (wants_keys) {
    plan.steps.push_back({kernel, problem.heads_k * keys.most_tiles(kernel.tile_keys, plan.splits)});
  }
  if (has_query_kernel) {
    plan.steps.push_back({query_kernel, problem.heads_q * queries.most_tiles(query_kernel.tile_queries, plan.splits)});
  }
  return plan;
}

}  // namespace

void add_kernels_of_overlapping_keys(const PlanRequest& request, GpuPlan& plan) {
  const Problem& problem = request.problem;
  if (problem.direction != Direction::backward || !problem.has_key_gaps) return;
  bool has_key_owners = false, has_query_kernel = false;
  for (plan::GpuStep& step : plan.steps) {
    const bool is_query_major = step.kernel.kind == KernelKind::backward_query;
    has_key_owners |= !is_query_major;
    has_query_kernel |= is_query_major;
    if (!is_query_major) step.kernel.for_overlap = plan::KeyOverlap::none;
  }
  if (!has_key_owners) return;
  const auto add = [&](KernelSpec kernel, const Side& side, int64_t heads, int KernelSpec::*tile) {
    kernel.for_overlap = plan::KeyOverlap::some;
    choose_tiles(kernel, request.gpu, request.function);
    plan.overlap_steps.push_back({kernel, heads * side.most_tiles(kernel.*tile, problem.batch)});
  };
  if (problem.wanted.key || problem.wanted.value) {
    KernelSpec kernel = kernel_for(request, KernelKind::backward);
    kernel.owns_rows = true;
    kernel.wants_grad_key = problem.wanted.key;
    kernel.wants_grad_value = problem.wanted.value;
    add(kernel, {Form::dense, problem.rows_k, 1}, problem.heads_k, &KernelSpec::tile_keys);
  }
  if (problem.wanted.query && !has_query_kernel) {
    add(kernel_for(request, KernelKind::backward_query), queries_of(problem), problem.heads_q,
        &KernelSpec::tile_queries);
  }
  plan.reason += "; where sequences of keys overlap, portable kernels compute instead";
}

void add_portable_parameter_gradients(const PlanRequest& request, const activation::Function& function,
                                      KernelSpec kernel, GpuPlan& plan) {
  choose_tiles(kernel, request.gpu, plan::registers_of(function.value_and_derivative(), kernel.accuracy));
  const Side queries = queries_of(request.problem);
  const int64_t tiles = request.problem.heads_q * queries.most_tiles(kernel.tile_queries, request.problem.batch);
  plan.parameter_steps.push_back({kernel, tiles});
}

GpuPlan portable_plan(const PlanRequest& request) {
  return request.problem.direction == Direction::forward ? plan_portable_forward(request)
                                                         : plan_portable_backward(request);
}

}  // namespace gdpa::families
