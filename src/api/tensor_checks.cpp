// The checks of the tensors of a call that an expression reads.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>

#include "api/check_parts.h"
#include "api/message.h"
#include "definition/tensor_types.h"

namespace gdpa::api {
namespace {

/// Whether the offset of an element in bytes may not fit in 32 bits.
bool needs_wide_offsets(const TensorView& view) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  int64_t extent = 0, elements = 1;  // the gradient has all elements, also where the tensor has strides of 0
  for (int axis = 0; axis < view.rank; ++axis) {
    extent += std::abs(stride(view, axis)) * (size(view, axis) - 1);
    elements *= size(view, axis);
  }
  return extent > most / size_in_bytes(view.dtype) || elements > most;
}

/// Returns whether an index of the function is an element of this tensor as it is, without floor(). The tensor then has
/// an integer type.
bool is_index(const activation::Function& function, std::size_t tensor) {
  const std::vector<activation::Input>& inputs = function.inputs();
  const auto is_rounded = [](activation::Operation operation) {
    return operation == activation::Operation::floor || operation == activation::Operation::floor_divide;
  };
  for (const activation::Input& read : inputs) {
    for (const activation::Program& index : read.indices) {
      for (std::size_t i = 0; i < index.steps.size(); ++i) {
        const activation::Step& step = index.steps[i];
        if (step.operation != activation::Operation::input) continue;
        const activation::Input& input = inputs[static_cast<std::size_t>(step.number)];
        if (input.kind != activation::Input::Kind::read || input.tensor != tensor) continue;
        // A later step may round the number.
        const bool rounds = std::any_of(index.steps.begin() + static_cast<std::ptrdiff_t>(i), index.steps.end(),
                                        [&](const activation::Step& later) { return is_rounded(later.operation); });
        if (!rounds) return true;
      }
    }
  }
  return false;
}

/// Checks a tensor that the function reads without an index.
void check_number(const std::string& who, const TensorView& view, int64_t heads, bool is_on_gpu) {
  if (view.dtype != DType::float32 && (is_on_gpu || view.dtype != DType::float64)) {
    refuse_type(who, is_on_gpu ? "dtype float32 on a GPU" : "dtype float32 or float64", name(view.dtype), "convert it");
  }
  if (view.rank > 1 || (view.rank == 1 && size(view, 0) != heads && size(view, 0) != 1)) {
    refuse(who, fmt::format("shape () or ({}), one number for each query head", heads), shape_of(view), "reshape it");
  }
}

/// Checks a tensor that the function reads by index.
void check_read(const std::string& who, const TensorView& view, const activation::Function& function,
                const activation::Input& read, bool is_on_gpu) {
  if (static_cast<std::size_t>(view.rank) != read.indices.size()) {
    refuse(who, fmt::format("rank {}, one axis for each index in \"{}\"", read.indices.size(), function.text()),
           rank_and_shape(view), "reshape it, or correct the indices");
  }
  const auto is_too_long = [&](int64_t n) { return n > std::numeric_limits<int32_t>::max(); };
  if (is_on_gpu && std::any_of(view.sizes.begin(), view.sizes.begin() + view.rank, is_too_long)) {
    refuse(who, "axes of at most 2^31 - 1 elements on a GPU", shape_of(view), "split the tensor");
  }
  if (is_on_gpu && view.dtype == DType::float64) {
    refuse_type(who, "dtype float32, bfloat16, float16, int32 or int64 on a GPU", name(view.dtype), "convert it");
  }
  if (is_floating(view.dtype) && is_index(function, read.tensor)) {
    refuse_type(who, "dtype int32 or int64, because it is an index", name(view.dtype),
                "convert it, or round it in the expression with floor()");
  }
}

/// Checks the axes of a tensor: each score reads an element. An axis of the rows of an operand without rows may be
/// empty.
void check_axes(const std::string& who, const TensorView& view, const activation::Function& function,
                const activation::Input& read, const Problem& problem) {
  for (std::size_t axis = 0; axis < read.indices.size(); ++axis) {
    if (!activation::is_row_axis(read, axis)) {
      if (view.sizes[axis] > 0) continue;
      refuse(who, "at least one element", shape_of(view), "pass a tensor with elements");
    }
    const bool is_query = activation::bare_index(read.indices[axis], function.inputs()) == activation::Index::query;
    const int64_t rows = is_query ? problem.rows_q : problem.rows_k;
    if (view.sizes[axis] >= rows || view.sizes[axis] == 1) continue;
    refuse(who,
           fmt::format("{} elements or more on axis {}, one for each row of {}, because its index is {}", rows, axis,
                       is_query ? "query" : "key", is_query ? "q_row" : "kv_row"),
           fmt::format("{} with shape {}", view.sizes[axis], shape_of(view)),
           fmt::format("pass a number for each row, or index it by the position in the sequence, {}",
                       is_query ? "q_idx" : "kv_idx"));
  }
}

/// Checks that a function which reads rows of the keys has packed keys.
void check_packed_keys(std::string_view who, const activation::Function& function, const Problem& problem) {
  const auto reads_rows = [&](const activation::Input& input) {
    if (input.kind == activation::Input::Kind::index) return input.index == activation::Index::first_row_k;
    for (std::size_t axis = 0; axis < input.indices.size(); ++axis) {
      const bool is_key = activation::bare_index(input.indices[axis], function.inputs()) == activation::Index::key;
      if (is_key && activation::is_row_axis(input, axis)) return true;
    }
    return false;
  };
  if (!problem.has_pages() || std::ranges::none_of(function.inputs(), reads_rows)) return;
  refuse(std::string(who), "keys in one tensor for kv_row", "keys in pages (block_table)",
         "index by the position in the sequence, kv_idx, and by the batch entry, batch");
}

}  // namespace

unsigned check_tensors(const Wording& words, const activation::Function& function,
                       const std::vector<Parameter>& parameters, const Common& common, const Problem& problem,
                       BoundTensors& bound) {
  unsigned types = 0;
  uint32_t given = 0;
  const std::vector<std::string>& names = function.parameters();
  const auto listed = [&names] { return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")); };
  if (names.size() > most_parameters) {
    refuse(words.expression, fmt::format("at most {} parameters of the call", most_parameters),
           static_cast<int64_t>(names.size()), "write numbers for some of them");
  }
  for (const Parameter& parameter : parameters) {
    const std::string who = fmt::format("{} {}", words.tensor, parameter.name);
    const TensorView& view = parameter.value;
    const auto found = std::find(names.begin(), names.end(), parameter.name);
    if (found == names.end()) {
      refuse(who, fmt::format("a parameter of the call ({})", listed()), "another name",
             fmt::format("name it in the {}, or leave it out", words.constructor));
    }
    const auto tensor = static_cast<std::size_t>(found - names.begin());
    for (const activation::Input& input : function.inputs()) {
      if (input.kind == activation::Input::Kind::index || input.tensor != tensor) continue;
      if (input.kind == activation::Input::Kind::number) check_number(who, view, problem.heads_q, common.is_on_gpu);
      if (input.kind == activation::Input::Kind::read) {
        check_read(who, view, function, input, common.is_on_gpu);
        check_axes(who, view, function, input, problem);
      }
    }
    check_memory(who, view, common);
    if ((given >> tensor & 1U) != 0) refuse(who, "one tensor", "two", "give it once");
    given |= 1U << tensor;
    bound[tensor] = bound_tensor_of(view);
    types |= tensor_type_bits(tensor, bound[tensor].type, needs_wide_offsets(view));
  }
  if (parameters.size() != names.size()) {
    refuse(words.tensors, fmt::format("a tensor for each parameter of the call ({})", listed()),
           static_cast<int64_t>(parameters.size()), "pass the missing tensors");
  }
  check_packed_keys(words.expression, function, problem);
  return types;
}

NumberType number_type_of(DType dtype) {
  static_assert(static_cast<int>(DType::int64) == static_cast<int>(NumberType::int64), "the types have one order");
  return static_cast<NumberType>(dtype);
}

BoundTensor bound_tensor_of(const TensorView& view) {
  BoundTensor tensor;
  tensor.data = const_cast<void*>(view.data);  // inputs are only read
  tensor.type = number_type_of(view.dtype);
  tensor.rank = view.rank;
  std::copy_n(view.sizes.begin(), view.rank, tensor.sizes);
  std::copy_n(view.strides.begin(), view.rank, tensor.strides);
  return tensor;
}

}  // namespace gdpa::api
