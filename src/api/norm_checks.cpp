// See norm_checks.h.
#include "api/norm_checks.h"

#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "api/message.h"
#include "api/overlap.h"

namespace gdpa::api {
namespace {

template <class Pointer>
void check_memory(std::string_view who, const BasicTensorView<Pointer>& view, const TensorView& x, bool needs_data) {
  if (view.device != x.device) {
    refuse(ErrorKind::type, who, fmt::format("device {}, the device of x", to_string(x.device)), to_string(view.device),
           "move all tensors to one device");
  }
  bool has_elements = true;
  for (int i = 0; i < view.rank; ++i) has_elements = has_elements && view.sizes[static_cast<std::size_t>(i)] > 0;
  if (needs_data && view.data == nullptr && has_elements) {
    refuse(ErrorKind::value, who, "a pointer to its elements", "null", "pass the address of the first element");
  }
}

/// Rows with the numbers of rows and columns of x, and with its dtype.
template <class Pointer>
void check_rows(std::string_view who, const BasicTensorView<Pointer>& view, const TensorView& x, bool needs_data) {
  const bool has_shape =
      (view.rank == 2 || view.rank == 3) && view.sizes[0] == x.sizes[0] && columns_of(view) == columns_of(x);
  if (!has_shape) {
    refuse(ErrorKind::value, who, fmt::format("{} rows of {} columns, as x has", x.sizes[0], columns_of(x)),
           fmt::format("shape {}", shape_of(view)), "reshape it");
  }
  const auto last = static_cast<std::size_t>(view.rank - 1);
  if (view.sizes[last] % 8 != 0) {
    refuse(ErrorKind::value, who, "a multiple of 8 columns in each head", fmt::format("{}", view.sizes[last]),
           "use the operations of PyTorch for other widths");
  }
  if (view.dtype != x.dtype) {
    refuse(ErrorKind::type, who, fmt::format("dtype {}, the dtype of x", name(x.dtype)), name(view.dtype),
           "convert it");
  }
  check_memory(who, view, x, needs_data);
  if (view.strides[last] != 1) {
    refuse(ErrorKind::value, who, "a last dimension of stride 1", fmt::format("stride {}", view.strides[last]),
           "make it contiguous in the last dimension, e.g. by .contiguous()");
  }
}

/// A result also gives each element an address of its own.
void check_result_rows(std::string_view who, const MutableTensorView& view, const TensorView& x) {
  check_rows(who, view, x, true);
  int64_t covered = 1;
  for (int i = view.rank; i-- > 0;) {
    const auto at = static_cast<std::size_t>(i);
    if (view.sizes[at] > 1 && view.strides[at] < covered) {
      refuse(ErrorKind::value, who, fmt::format("a stride of at least {} in dimension {}", covered, i),
             fmt::format("{}", view.strides[at]), "write into a tensor of its own");
    }
    covered += view.strides[at] * (view.sizes[at] - 1);
  }
}

/// A contiguous vector with a number for each column.
template <class Pointer>
void check_vector(std::string_view who, const BasicTensorView<Pointer>& view, const TensorView& x, DType dtype,
                  bool needs_data) {
  if (view.rank != 1 || view.sizes[0] != columns_of(x) || view.strides[0] != 1) {
    refuse(ErrorKind::value, who, fmt::format("a contiguous vector of {} numbers, one for each column", columns_of(x)),
           shape_of(view), "reshape it");
  }
  if (view.dtype != dtype) {
    refuse(ErrorKind::type, who, fmt::format("dtype {}", name(dtype)), name(view.dtype), "convert it");
  }
  check_memory(who, view, x, needs_data);
}

template <class Pointer>
void check_statistics(const BasicTensorView<Pointer>& view, const TensorView& x) {
  const bool is_right = view.rank == 2 && view.sizes[0] == x.sizes[0] && view.sizes[1] == 2 && view.strides[0] == 2 &&
                        view.strides[1] == 1 && view.dtype == DType::float32;
  if (!is_right) {
    refuse(ErrorKind::value, "statistics", fmt::format("a contiguous float32 tensor of shape ({}, 2)", x.sizes[0]),
           fmt::format("{} of shape {}", name(view.dtype), shape_of(view)), "allocate it with this shape");
  }
  check_memory("statistics", view, x, true);
}

DType dtype_of_weights(const Norm& norm) {
  const std::optional<TensorView>& given = norm.weight ? norm.weight : norm.bias;
  if (!given) return norm.x.dtype;
  if (given->dtype != norm.x.dtype && given->dtype != DType::float32) {
    refuse(ErrorKind::type, norm.weight ? "weight" : "bias", fmt::format("dtype {} or float32", name(norm.x.dtype)),
           name(given->dtype), "convert it");
  }
  return given->dtype;
}

/// Refuses results that have an element in common with an input or with each other.
void check_apart(const std::vector<NamedBytes>& inputs, const std::vector<NamedBytes>& results) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    const auto check = [&](const NamedBytes& other) {
      if (!overlap(results[i].bytes, other.bytes)) return;
      refuse(ErrorKind::value, results[i].who, "memory of its own", fmt::format("elements that {} has too", other.who),
             "write into another tensor");
    };
    for (const NamedBytes& input : inputs) check(input);
    for (std::size_t j = 0; j < i; ++j) check(results[j]);
  }
}

std::vector<NamedBytes> inputs_of(const Norm& norm) {
  std::vector<NamedBytes> inputs = {{"x", Bytes::of(norm.x)}};
  if (norm.weight) inputs.push_back({"weight", Bytes::of(*norm.weight)});
  if (norm.bias) inputs.push_back({"bias", Bytes::of(*norm.bias)});
  if (norm.gate) inputs.push_back({"gate", Bytes::of(*norm.gate)});
  return inputs;
}

}  // namespace

void check_norm(const Norm& norm, bool needs_data) {
  const TensorView& x = norm.x;
  if (x.device.kind != DeviceKind::cuda) {
    refuse(ErrorKind::type, "x", "a tensor on a GPU", to_string(x.device), "use the operations of PyTorch on a CPU");
  }
  if (x.rank != 2 && x.rank != 3) {
    refuse(ErrorKind::value, "x", "rank 2, (rows, columns), or rank 3, (rows, heads, columns)",
           fmt::format("rank {} with shape {}", x.rank, shape_of(x)), "reshape it");
  }
  if (x.dtype != DType::float32 && x.dtype != DType::bfloat16 && x.dtype != DType::float16) {
    refuse(ErrorKind::type, "x", "dtype float32, bfloat16 or float16", name(x.dtype), "convert it");
  }
  if (columns_of(x) < 8 || columns_of(x) > Norm::most_columns) {
    refuse(ErrorKind::value, "x", fmt::format("rows of 8 to {} columns", Norm::most_columns),
           fmt::format("{}", columns_of(x)), "use the operations of PyTorch for other widths");
  }
  if (!std::isfinite(norm.eps) || norm.eps < 0) {
    refuse(ErrorKind::value, "eps", "a number of 0 or more", fmt::format("{}", norm.eps), "correct it");
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
  std::vector<NamedBytes> inputs = inputs_of(norm);
  if (norm.residual) inputs.push_back({"residual", Bytes::of(*norm.residual)});
  check_apart(inputs, {{"y", Bytes::of(y)}, {"statistics", Bytes::of(statistics)}});
}

void check_norm_backward(const Norm& norm, const TensorView& grad_y, const TensorView& statistics,
                         const NormGradients& gradients) {
  check_norm(norm, true);
  check_rows("grad_y", grad_y, norm.x, true);
  check_statistics(statistics, norm.x);
  const auto need = [](std::string_view who, bool is_there, const MutableTensorView& gradient) {
    if (is_wanted(gradient) && !is_there) {
      refuse(ErrorKind::value, who, "no gradient of a tensor that is not given", "one", "leave it out");
    }
  };
  need("grad_weight", norm.weight.has_value(), gradients.weight);
  need("grad_bias", norm.bias.has_value(), gradients.bias);
  need("grad_gate", norm.gate.has_value(), gradients.gate);
  std::vector<NamedBytes> inputs = inputs_of(norm), results;
  inputs.push_back({"grad_y", Bytes::of(grad_y)});
  inputs.push_back({"statistics", Bytes::of(statistics)});
  const DType of_weights = dtype_of_weights(norm);
  if (is_wanted(gradients.x)) {
    check_result_rows("grad_x", gradients.x, norm.x);
    results.push_back({"grad_x", Bytes::of(gradients.x)});
  }
  if (is_wanted(gradients.gate)) {
    check_result_rows("grad_gate", gradients.gate, norm.x);
    results.push_back({"grad_gate", Bytes::of(gradients.gate)});
  }
  if (is_wanted(gradients.weight)) {
    check_vector("grad_weight", gradients.weight, norm.x, of_weights, true);
    results.push_back({"grad_weight", Bytes::of(gradients.weight)});
  }
  if (is_wanted(gradients.bias)) {
    check_vector("grad_bias", gradients.bias, norm.x, of_weights, true);
    results.push_back({"grad_bias", Bytes::of(gradients.bias)});
  }
  if (results.empty()) {
    refuse(ErrorKind::value, "norm_backward", "at least one gradient that is wanted", "none", "pass a tensor for one");
  }
  check_apart(inputs, results);
}

}  // namespace gdpa::api
