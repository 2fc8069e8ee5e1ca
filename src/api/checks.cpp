// The checks of a call, in this order: each operand, the operands together, the sequences, the numbers, the tensors of
// the expressions, and the outputs. A call with several mistakes reports the first one.
#include "api/checks.h"

#include <cmath>
#include <string_view>
#include <utility>

#include "api/check_parts.h"
#include "api/message.h"

namespace gdpa::api {
namespace {

void check_workspace(const Workspace& workspace) {
  const auto remainder = static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(workspace.data) % Workspace::alignment);
  if (remainder != 0) {
    refuse("workspace", fmt::format("an address that is a multiple of {} bytes", Workspace::alignment),
           fmt::format("a remainder of {}", remainder), "pass the address that the device's allocator returned");
  }
}

void check_heads_of_list(const activation::Function& function, int64_t heads) {
  const auto functions = static_cast<int64_t>(function.functions());
  if (functions > 1 && functions != heads) {
    refuse("activation", fmt::format("one function, or {}: one for each query head", heads), functions,
           "correct the list");
  }
}

/// Checks that the output has the shape of the query.
void check_add_query(const Problem& problem) {
  constexpr std::string_view who = "add_query", remedy = "leave it out, and add the query to the output";
  if (problem.head_dim_v != problem.head_dim) {
    refuse(who, fmt::format("value with the query's head_dim {}", problem.head_dim), problem.head_dim_v,
           "leave it out, and add a projection of the query to the output");
  }
  if (problem.shares_queries()) refuse(who, "queries of each batch entry", "one query for the whole batch", remedy);
  if (problem.has_output_offsets || !problem.zeroes_output) {
    refuse(who, "an output with the rows of the query",
           problem.has_output_offsets ? "output_offsets" : "zeroes_output false", remedy);
  }
  if (problem.out_scale == OutScale::Kind::per_row) {
    refuse(who, "an out_scale without a number for each query", "one with them", remedy);
  }
}

/// The properties of a call that do not depend on its tensors of expressions.
Problem problem_of(const Attention& attention, Direction direction, const Sides& sides) {
  const TensorView& query = attention.query;
  const auto& [queries, keys, batch, outputs] = sides;
  return {.direction = direction,
          .device = query.device,
          .dtype = query.dtype,
          .batch = batch,
          .query_form = queries.form,
          .key_form = keys.form,
          .has_query_gaps = queries.has_gaps,
          .has_key_gaps = keys.has_gaps,
          .has_batch_map = attention.kv_of.has_value(),
          .page_rows = keys.sequences.page_rows,
          .mapped_entries = attention.kv_of ? keys.batch : 0,
          .has_output_offsets = attention.output_offsets.has_value(),
          .zeroes_output = attention.zeroes_output,
          .heads_q = size(query, query.rank - 2),
          .heads_k = size(attention.key, attention.key.rank - 2),
          .head_dim = size(query, query.rank - 1),
          .head_dim_v = size(attention.value, attention.value.rank - 1),
          .rows_q = queries.rows,
          .rows_k = keys.rows,
          .rows_o = queries.form == Form::shared ? batch * queries.rows : queries.rows,
          .mask = attention.mask,
          .out_scale = attention.out_scale.kind,
          .accuracy = attention.accuracy,
          .deterministic = attention.deterministic,
          .threads = attention.threads,
          .allow_tf32 = attention.allow_tf32,
          .add_query = attention.add_query};
}

/// The operands, sequences and sizes for kernels.
Params params_of(const Attention& attention, const Sides& sides, double scale) {
  const TensorView &query = attention.query, &key = attention.key, &value = attention.value;
  Params params;
  params.batch = sides.batch;
  params.heads_q = size(query, query.rank - 2);
  params.heads_k = size(key, key.rank - 2);
  params.head_dim = size(query, query.rank - 1);
  params.head_dim_v = size(value, value.rank - 1);
  params.queries = sides.queries.sequences;
  params.keys = sides.keys.sequences;
  params.outputs = sides.outputs;
  params.query = operand_of(query);
  params.key = operand_of(key);
  params.value = operand_of(value);
  params.scale = scale;
  params.mask = attention.mask;
  return params;
}

/// `wants_out_scale`: backward computes the gradient of one number for each row of the query.
CheckedCall check_inputs(const Attention& attention, Direction direction, bool needs_data, bool for_gpu,
                         bool wants_out_scale) {
  const TensorView& query = attention.query;
  if (!is_floating(query.dtype)) {
    refuse_type("query", "dtype float32, float64, bfloat16 or float16", name(query.dtype), "convert it");
  }
  const bool is_on_gpu = for_gpu || query.device.kind == DeviceKind::cuda;
  const Common common{query.dtype, query.device, needs_data, is_on_gpu};
  check_operand("query", query, common);
  check_operand("key", attention.key, common);
  check_operand("value", attention.value, common);
  if (is_on_gpu) check_fits_gpu(query, attention.value);
  check_shapes(query, attention.key, attention.value);
  const Sides sides = check_sides(attention, common, direction);
  const double scale = attention.scale.value_or(1.0 / std::sqrt(static_cast<double>(size(query, query.rank - 1))));
  check_finite("scale", scale);
  check_window(attention.mask);
  check_workspace(attention.workspace);
  if (attention.threads < 0) {
    refuse("threads", "0 for all processors, or a number of threads", attention.threads, "correct the number");
  }

  CheckedCall call{problem_of(attention, direction, sides), params_of(attention, sides, scale)};
  Problem& problem = call.problem;
  Params& params = call.params;
  if (attention.add_query) check_add_query(problem);
  params.out_scale = output_scale_of(attention.out_scale, sides, common);
  const activation::Function& function = attention.activation.function();
  check_heads_of_list(function, problem.heads_q);
  problem.tensor_types = check_tensors(of_function, function, attention.parameters, common, problem, params.parameters);
  check_mask_expression(attention, common, problem, params);
  problem.prepared = check_prepared_mask(attention, problem, needs_data);
  if (wants_out_scale && !params.out_scale.is_per_row()) {
    refuse("gradient of out_scale", "an out_scale with one number for each row of the query", "another one",
           "leave it out");
  }
  if (params.out_scale.is_per_row()) {
    check_row_scale(function);
    const bool is_backward = direction == Direction::backward;
    if (is_backward && (is_on_gpu || wants_out_scale)) call.function = multiply_by_row_scale(function, problem, params);
  }
  return call;
}

/// The gradient of out_scale is that of the last tensor of the function (multiply_by_row_scale).
void want(Problem& problem, const Attention& attention, WantedGradients wanted) {
  if (!wanted.any()) {
    refuse("backward", "at least one gradient that is wanted", "none",
           "pass a tensor for grad_query, grad_key, grad_value, a parameter or out_scale");
  }
  if (std::exchange(wanted.out_scale, false)) wanted.parameters |= 1U << attention.activation.parameters().size();
  problem.wanted = wanted;
}

}  // namespace

CheckedCall check_plan(const Attention& attention, Direction direction, bool for_gpu, const WantedGradients& wanted,
                       bool needs_data) {
  const bool wants_out_scale = direction == Direction::backward && wanted.out_scale;
  CheckedCall call = check_inputs(attention, direction, needs_data, for_gpu, wants_out_scale);
  // The CPU has no lists that a plan for a GPU could read.
  if (for_gpu && call.problem.device.kind == DeviceKind::cpu) call.problem.prepared = nullptr;
  if (direction != Direction::backward) return call;
  want(call.problem, attention, wanted);
  for (int i = 0; i < most_parameters; ++i) {
    if ((call.problem.wanted.parameters >> i & 1U) == 0) continue;
    // The gradient has the sizes of its tensor, and is assumed to be contiguous and of the tensor's type.
    BoundTensor& gradient = call.params.grad_parameters[i];
    gradient = call.params.parameters[i];
    gradient.data = nullptr;
    int64_t stride = 1;
    for (int axis = gradient.rank; axis-- > 0; stride *= gradient.sizes[axis]) gradient.strides[axis] = stride;
  }
  return call;
}

CheckedCall check_forward(const Attention& attention, const MutableTensorView& output) {
  CheckedCall call = check_inputs(attention, Direction::forward, true, false, false);
  check_output(attention, output, call);
  return call;
}

CheckedCall check_backward(const Attention& attention, const Gradients& gradients) {
  CheckedCall call = check_inputs(attention, Direction::backward, true, false, is_wanted(gradients.out_scale));
  want(call.problem, attention, check_gradients(attention, gradients, call));
  return call;
}

}  // namespace gdpa::api
