// See plan.h.
#include "gpu/plan.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "gpu/families/family.h"
#include "gpu/kernels/add_rows.h"
#include "gpu/kernels/check_indices.h"
#include "gpu/kernels/check_offsets.h"
#include "gpu/kernels/clear_gaps.h"
#include "gpu/kernels/reduce.h"
#include "gpu/overlapping_keys.h"
#include "gpu/thresholds.h"
#include "gpu/tile_lists.h"

namespace gdpa::gpu {
namespace {

void append(std::vector<Launch>& launches, std::vector<Launch> more) {
  std::move(more.begin(), more.end(), std::back_inserter(launches));
}

/// The launches that find the places of sequences, and in debug mode check them.
std::vector<Launch> find_sequences(const Call& call, bool finds_overlap, GpuPlan& plan) {
  std::vector<Launch> launches;
  if (checks_offsets(call)) launches.push_back(check_offsets(plan.tile_lists));
  plan.sequences = plan_sequences(call, finds_overlap, plan.workspace, launches);
  return launches;
}

}  // namespace

Operand Accumulators::operand(std::byte* workspace) const {
  Operand operand;
  operand.data = workspace + offset;
  operand.head_stride = padded_columns(shape.columns);
  operand.row_stride = shape.heads * operand.head_stride;
  operand.batch_stride = shape.form == Form::jagged ? 0 : length * operand.row_stride;
  return operand;
}

void GpuPlan::add_products(Launch launch, const AttentionKernel& tiles) {
  if (tile_queries == 0) {
    main_launch = launches.size();
    tile_queries = tiles.tile_queries;
    tile_keys = tiles.tile_keys;
  }
  launches.push_back(std::move(launch));
}

Accumulators GpuPlan::reserve_accumulators(const Call& call, Operand Params::*gradient, int64_t parts) {
  const OperandShape shape = shape_of(call.problem, gradient);
  const int64_t numbers = parts * shape.rows * shape.heads * padded_columns(shape.columns);
  return {workspace.reserve(numbers * static_cast<int64_t>(sizeof(float))), gradient, shape,
          (call.params.*shape.side).length};
}

void GpuPlan::reserve_key_partials(const Call& call) {
  if (call.problem.wanted.key) grad_key = reserve_accumulators(call, &Params::grad_key, splits);
  if (call.problem.wanted.value) grad_value = reserve_accumulators(call, &Params::grad_value, splits);
}

void GpuPlan::clear(int64_t begin, int64_t end) { launches.push_back(Launch::clear(begin, end - begin)); }

CommonArguments GpuPlan::common_arguments(const Problem& problem, const Params& params, std::byte* memory) const {
  CommonArguments arguments{};
  arguments.params = params;
  set_sequences(sequences, problem, params, memory, arguments);
  set_tile_lists(*this, problem, memory, arguments);
  set_parameter_sums(parameters, problem, memory, arguments);
  arguments.packed_rows_q = problem.rows_q;
  arguments.packed_rows_k = problem.rows_k;
  arguments.splits = splits;
  arguments.output_factor = static_cast<float>(output_factor);
  if (grad_query.exist()) arguments.grad_query_accumulator = grad_query.operand(memory);
  if (grad_key.exist()) arguments.grad_key_accumulator = grad_key.operand(memory);
  if (grad_value.exist()) arguments.grad_value_accumulator = grad_value.operand(memory);
  return arguments;
}

bool is_factor(double factor) { return factor >= 0x1p-32 && factor <= 0x1p32; }

std::optional<double> factor_of_scale(const Call& call) {
  const std::optional<double>& degree = call.facts().degree;
  const double scale = call.params.scale;
  if (!degree || scale <= 0) return std::nullopt;
  const double factor = std::pow(scale, *degree);
  return is_factor(factor) ? std::optional(factor) : std::nullopt;
}

GpuPlan plan_call(const Call& call) {
  const Problem& problem = call.problem;
  GpuPlan plan;
  std::vector<Launch> clears;
  const bool has_operands = problem.direction == Direction::forward || problem.wanted.of_operands();
  std::vector<Launch> of_overlapping_keys;
  if (has_operands) {
    add_attention(call, plan);
    of_overlapping_keys = separate_overlapping_keys(call, plan);
  }
  if (problem.dtype != DType::float32 && accuracy_of(problem) != problem.accuracy) {
    plan.reason += fmt::format("; f is exact: the call has at most {} scores", thresholds::scores_of_exact_calls);
  }
  plan_parameter_gradients(call, plan, clears);
  for (const Accumulators* const sums : {&plan.grad_query, &plan.grad_key, &plan.grad_value}) {
    if (sums->exist()) plan.launches.push_back(reduce(call, *sums, plan.splits));
  }
  const bool finds_overlap = !of_overlapping_keys.empty();
  append(plan.launches, std::move(of_overlapping_keys));
  if (has_addend(problem) && !plan.attention_adds) plan.launches.push_back(add_rows(call));
  // What the kernels need first. The lists of tiles are known only now.
  std::vector<Launch> of_lists;
  place_tile_lists(call, plan, of_lists);
  std::vector<Launch> launches = find_sequences(call, finds_overlap, plan);
  clear_gaps(problem, launches);
  if (std::optional<Launch> checks = check_indices(call)) launches.push_back(std::move(*checks));
  append(launches, std::move(of_lists));
  append(launches, std::move(clears));
  plan.main_launch += launches.size();
  append(launches, std::move(plan.launches));
  plan.launches = std::move(launches);
  return plan;
}

void plan_preparation(const Call& call, int64_t bytes_of_lists, GpuPlan& plan) {
  plan.workspace = WorkspaceLayout(bytes_of_lists);
  std::vector<Launch> launches = find_sequences(call, false, plan);
  append(launches, std::move(plan.launches));
  plan.launches = std::move(launches);
}

}  // namespace gdpa::gpu
