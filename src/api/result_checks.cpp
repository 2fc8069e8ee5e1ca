// The checks of the tensors that a call writes: their shapes, and that they have memory of their own.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "api/check_parts.h"
#include "api/message.h"
#include "api/overlap.h"

namespace gdpa::api {
namespace {

/// Checks the shape of the output or of its gradient: the shape of the query with head_dim_v last. For a shared query,
/// it has batch * length rows, or batch and length as two dimensions. With output_offsets, it has any number of rows.
void check_output_shape(std::string_view who, const TensorView& view, const Problem& problem,
                        const Attention& attention) {
  TensorView expected = attention.query;
  expected.sizes[static_cast<std::size_t>(expected.rank - 1)] = problem.head_dim_v;
  if (problem.has_output_offsets) {
    expected.sizes[0] = size(view, 0);
  } else if (problem.query_form == Form::shared && view.rank == 4) {
    expected.rank = 4;
    expected.sizes = {problem.batch, problem.rows_q, problem.heads_q, problem.head_dim_v};
  } else if (problem.query_form == Form::shared) {
    expected.sizes[0] *= problem.batch;
  }
  if (!is_same_shape(view, expected)) {
    refuse(who, fmt::format("shape {}", shape_of(expected)), shape_of(view),
           "allocate the query's shape with the value's head_dim last");
  }
}

/// Returns the strides of the output or of its gradient, and checks where its rows are. The output of a shared query is
/// not shared: it has `length` rows for each batch entry, one batch entry after another.
Operand output_operand_of(CheckedCall& call, const TensorView& view) {
  Problem& problem = call.problem;
  if (problem.has_output_offsets) {
    problem.rows_o = size(view, 0);
    check_output_offsets(problem, call.params, size(view, 0));
    return operand_of(view);
  }
  const int64_t length = problem.query_form == Form::shared ? call.params.queries.length : 0;
  return operand_of(view, length * stride(view, view.rank - 3));
}

/// The memory of the inputs.
ArgumentMemory memory_of(const Attention& attention) {
  ArgumentMemory memory;
  memory.add("query", attention.query);
  memory.add("key", attention.key);
  memory.add("value", attention.value);
  using Optional = std::pair<std::string_view, const std::optional<TensorView>&>;
  for (const auto& [who, view] :
       {Optional("cu_seqlens_q", attention.cu_seqlens_q), Optional("cu_seqlens_k", attention.cu_seqlens_k),
        Optional("seq_offsets_q", attention.seq_offsets_q), Optional("seq_offsets_k", attention.seq_offsets_k),
        Optional("kv_of", attention.kv_of), Optional("block_table", attention.block_table),
        Optional("seqused_k", attention.seqused_k), Optional("output_offsets", attention.output_offsets)}) {
    if (view) memory.add(who, *view);
  }
  if (attention.out_scale.kind == OutScale::Kind::per_batch) memory.add("out_scale", attention.out_scale.per_batch);
  if (attention.out_scale.kind == OutScale::Kind::per_row) memory.add("out_scale", attention.out_scale.per_row);
  for (const Parameter& parameter : attention.parameters) memory.add(parameter.name, parameter.value);
  for (const Parameter& parameter : attention.mask_parameters) memory.add(parameter.name, parameter.value);
  return memory;
}

/// Checks the gradient of a tensor of the function.
void check_grad_tensor(std::string_view who, const TensorView& input, const MutableTensorView& gradient,
                       const Common& common, ArgumentMemory& memory) {
  if (!is_floating(input.dtype)) {
    refuse_type(who, "a parameter of a floating dtype", name(input.dtype), "leave it out");
  }
  const DType own = common.is_on_cpu() ? DType::float64 : input.dtype;
  if (gradient.dtype != DType::float32 && gradient.dtype != own) {
    const std::string or_own = own == DType::float32 ? "" : fmt::format(" or {}", name(own));
    refuse_type(who, "dtype float32" + or_own, name(gradient.dtype), "allocate another tensor");
  }
  if (!is_same_shape(gradient, input)) {
    refuse(who, fmt::format("shape {}, as the parameter's", shape_of(input)), shape_of(gradient),
           "allocate the parameter's shape");
  }
  check_memory(who, gradient, common);
  check_no_overlap(who, gradient);
  memory.add_result(who, gradient, "another gradient");
}

/// Checks the gradients of the tensors of the call, fills in their addresses, and returns them as bits.
uint32_t check_grad_parameters(const Attention& attention, const std::vector<ParameterGradient>& gradients,
                               const Common& common, ArgumentMemory& memory, Params& params) {
  const std::vector<std::string>& names = attention.activation.parameters();
  uint32_t wanted = 0;
  for (const ParameterGradient& gradient : gradients) {
    const std::string who = fmt::format("gradient of parameter {}", gradient.name);
    const auto found = std::find(names.begin(), names.end(), gradient.name);
    if (found == names.end()) refuse(who, "a parameter of the call", "another name", "leave it out");
    const auto index = static_cast<std::size_t>(found - names.begin());
    if ((wanted >> index & 1U) != 0) refuse(who, "one tensor", "two", "give it once");
    const TensorView& input = std::ranges::find(attention.parameters, gradient.name, &Parameter::name)->value;
    check_grad_tensor(who, input, gradient.value, common, memory);
    wanted |= 1U << index;
    params.grad_parameters[index] = bound_tensor_of(gradient.value);
  }
  return wanted;
}

/// Checks the gradient of one number for each row of the query, and fills in its address. Returns whether it is wanted.
bool check_grad_out_scale(const Attention& attention, const MutableTensorView& gradient, const Common& common,
                          ArgumentMemory& memory, Params& params) {
  if (!is_wanted(gradient)) return false;
  constexpr std::string_view who = "gradient of out_scale";
  check_grad_tensor(who, attention.out_scale.per_row, gradient, common, memory);
  const std::size_t tensor = attention.activation.parameters().size();
  BoundTensor& bound = params.grad_parameters[tensor];
  bound = params.parameters[tensor];
  bound.data = gradient.data;
  bound.type = number_type_of(gradient.dtype);
  bound.strides[0] = row_stride_of(who, gradient);
  return true;
}

}  // namespace

void check_output(const Attention& attention, const MutableTensorView& output, CheckedCall& call) {
  check_operand("output", output, {call.problem.dtype, call.problem.device, true});
  check_output_shape("output", output, call.problem, attention);
  check_no_overlap("output", output);
  memory_of(attention).add_result("output", output);
  call.params.output = output_operand_of(call, output);
}

WantedGradients check_gradients(const Attention& attention, const Gradients& gradients, CheckedCall& call) {
  Params& params = call.params;
  const Common common{call.problem.dtype, call.problem.device, true};
  check_operand("grad_output", gradients.output, common);
  check_output_shape("grad_output", gradients.output, call.problem, attention);
  ArgumentMemory memory = memory_of(attention);
  memory.add("grad_output", gradients.output);
  // Whether the gradient of query, key or value is wanted.
  const auto check = [&](std::string_view who, const TensorView& input, const MutableTensorView& gradient,
                         Operand& operand) {
    if (!is_wanted(gradient)) return false;
    check_operand(who, gradient, common);
    if (!is_same_shape(gradient, input)) {
      refuse(who, fmt::format("shape {}, as its input's", shape_of(input)), shape_of(gradient),
             "allocate the input's shape");
    }
    check_no_overlap(who, gradient);
    memory.add_result(who, gradient);
    operand = operand_of(gradient);
    return true;
  };
  const WantedGradients wanted{check("grad_query", attention.query, gradients.query, params.grad_query),
                               check("grad_key", attention.key, gradients.key, params.grad_key),
                               check("grad_value", attention.value, gradients.value, params.grad_value),
                               check_grad_parameters(attention, gradients.parameters, common, memory, params),
                               check_grad_out_scale(attention, gradients.out_scale, common, memory, params)};
  params.grad_output = output_operand_of(call, gradients.output);
  return wanted;
}

}  // namespace gdpa::api
