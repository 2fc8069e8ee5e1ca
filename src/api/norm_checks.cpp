// See norm_checks.h.
#include "api/norm_checks.h"

#include <cmath>
#include <optional>
#include <string_view>

#include "api/check_parts.h"
#include "api/message.h"
#include "api/overlap.h"

namespace gdpa::api {
namespace {

/// The properties that all tensors of a norm have in common with x.
Common common_of(const TensorView& x, bool needs_data) {
  return {.dtype = x.dtype, .device = x.device, .needs_data = needs_data, .whose = "the device of x"};
}

/// Rows with the numbers of rows and columns of x, and with its dtype.
void check_rows(std::string_view who, const TensorView& view, const TensorView& x, bool needs_data) {
  const bool has_shape =
      (view.rank == 2 || view.rank == 3) && view.sizes[0] == x.sizes[0] && columns_of(view) == columns_of(x);
  if (!has_shape) {
    refuse(who, fmt::format("{} rows of {} columns, as x has", x.sizes[0], columns_of(x)),
           fmt::format("shape {}", shape_of(view)), "reshape it");
  }
  const auto last = static_cast<std::size_t>(view.rank - 1);
  if (view.sizes[last] % 8 != 0) {
    refuse(who, "a multiple of 8 columns in each head", view.sizes[last],
           "use the operations of PyTorch for other widths");
  }
  if (view.dtype != x.dtype) {
    refuse_type(who, fmt::format("dtype {}, the dtype of x", name(x.dtype)), name(view.dtype), "convert it");
  }
  check_memory(who, view, common_of(x, needs_data));
  check_last_stride(who, view);
}

/// A result also gives each element an address of its own.
void check_result_rows(std::string_view who, const TensorView& view, const TensorView& x) {
  check_rows(who, view, x, true);
  int64_t covered = 1;
  for (int i = view.rank; i-- > 0;) {
    const auto at = static_cast<std::size_t>(i);
    if (view.sizes[at] > 1 && view.strides[at] < covered) {
      refuse(who, fmt::format("a stride of at least {} in dimension {}", covered, i), view.strides[at],
             "write into a tensor of its own");
    }
    covered += view.strides[at] * (view.sizes[at] - 1);
  }
}

/// A contiguous vector with a number for each column.
void check_vector(std::string_view who, const TensorView& view, const TensorView& x, DType dtype, bool needs_data) {
  if (view.rank != 1 || view.sizes[0] != columns_of(x) || view.strides[0] != 1) {
    refuse(who, fmt::format("a contiguous vector of {} numbers, one for each column", columns_of(x)), shape_of(view),
           "reshape it");
  }
  if (view.dtype != dtype) {
    refuse_type(who, fmt::format("dtype {}", name(dtype)), name(view.dtype), "convert it");
  }
  check_memory(who, view, common_of(x, needs_data));
}

void check_statistics(const TensorView& view, const TensorView& x) {
  const bool is_right = view.rank == 2 && view.sizes[0] == x.sizes[0] && view.sizes[1] == 2 && view.strides[0] == 2 &&
                        view.strides[1] == 1 && view.dtype == DType::float32;
  if (!is_right) {
    refuse("statistics", fmt::format("a contiguous float32 tensor of shape ({}, 2)", x.sizes[0]),
           fmt::format("{} of shape {}", name(view.dtype), shape_of(view)), "allocate it with this shape");
  }
  check_memory("statistics", view, common_of(x, true));
}

DType dtype_of_weights(const Norm& norm) {
  const std::optional<TensorView>& given = norm.weight ? norm.weight : norm.bias;
  if (!given) return norm.x.dtype;
  if (given->dtype != norm.x.dtype && given->dtype != DType::float32) {
    refuse_type(norm.weight ? "weight" : "bias", fmt::format("dtype {} or float32", name(norm.x.dtype)),
                name(given->dtype), "convert it");
  }
  return given->dtype;
}

ArgumentMemory memory_of(const Norm& norm) {
  ArgumentMemory memory;
  memory.add("x", norm.x);
  if (norm.weight) memory.add("weight", *norm.weight);
  if (norm.bias) memory.add("bias", *norm.bias);
  if (norm.gate) memory.add("gate", *norm.gate);
  return memory;
}

}  // namespace

void check_norm(const Norm& norm, bool needs_data) {
  const TensorView& x = norm.x;
  if (x.device.kind != DeviceKind::cuda) {
    refuse_type("x", "a tensor on a GPU", to_string(x.device), "use the operations of PyTorch on a CPU");
  }
  if (x.rank != 2 && x.rank != 3) {
    refuse("x", "rank 2, (rows, columns), or rank 3, (rows, heads, columns)", rank_and_shape(x), "reshape it");
  }
  if (!is_operand_of_gpu(x.dtype)) {
    refuse_type("x", "dtype float32, bfloat16 or float16", name(x.dtype), "convert it");
  }
  if (columns_of(x) < 8 || columns_of(x) > Norm::most_columns) {
    refuse("x", fmt::format("rows of 8 to {} columns", Norm::most_columns), columns_of(x),
           "use the operations of PyTorch for other widths");
  }
  if (!std::isfinite(norm.eps) || norm.eps < 0) {
    refuse("eps", "a number of 0 or more", fmt::format("{}", norm.eps), "correct it");
  }
  check_rows("x", x, x, needs_data);
  const DType of_weights = dtype_of_weights(norm);
  if (norm.weight) check_vector("weight", *norm.weight, x, of_weights, needs_data);
  if (norm.bias) check_vector("bias", *norm.bias, x, of_weights, needs_data);
  if (norm.gate) check_rows("gate", *norm.gate, x, needs_data);
  if (norm.residual) check_rows("residual", *norm.residual, x, needs_data);
}

void check_norm_forward(const Norm& norm, const MutableTensorView& y, const MutableTensorView& statistics) {
  check_norm(norm, true);
  check_result_rows("y", y, norm.x);
  check_statistics(statistics, norm.x);
  ArgumentMemory memory = memory_of(norm);
  if (norm.residual) memory.add("residual", *norm.residual);
  memory.add_result("y", y);
  memory.add_result("statistics", statistics);
}

void check_norm_backward(const Norm& norm, const TensorView& grad_y, const TensorView& statistics,
                         const NormGradients& gradients) {
  check_norm(norm, true);
  check_rows("grad_y", grad_y, norm.x, true);
  check_statistics(statistics, norm.x);
  const auto need = [](std::string_view who, const std::optional<TensorView>& input,
                       const MutableTensorView& gradient) {
    if (is_wanted(gradient) && !input) refuse(who, "no gradient of a tensor that is not given", "one", "leave it out");
  };
  need("grad_weight", norm.weight, gradients.weight);
  need("grad_bias", norm.bias, gradients.bias);
  need("grad_gate", norm.gate, gradients.gate);
  ArgumentMemory memory = memory_of(norm);
  memory.add("grad_y", grad_y);
  memory.add("statistics", statistics);
  bool any = false;
  const auto add = [&](std::string_view who, const MutableTensorView& gradient, bool is_vector) {
    if (!is_wanted(gradient)) return;
    if (is_vector) {
      check_vector(who, gradient, norm.x, dtype_of_weights(norm), true);
    } else {
      check_result_rows(who, gradient, norm.x);
    }
    memory.add_result(who, gradient);
    any = true;
  };
  add("grad_x", gradients.x, false);
  add("grad_gate", gradients.gate, false);
  add("grad_weight", gradients.weight, true);
  add("grad_bias", gradients.bias, true);
  if (!any) refuse("norm_backward", "at least one gradient that is wanted", "none", "pass a tensor for one");
}

}  // namespace gdpa::api
