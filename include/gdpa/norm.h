// Norms of rows on a GPU, with an optional gate and residual, for the rows before and after attention.
#pragma once

#include <cstdint>
#include <optional>

#include "gdpa/attention.h"
#include "gdpa/export.h"
#include "gdpa/tensor.h"

namespace gdpa {

/// A norm of the rows of x:
///     layer  n = (x - mean) * rstd * weight + bias        rstd = 1 / sqrt(mean((x - mean)^2) + eps)
///     rms    n = x * rstd * weight + bias                 rstd = 1 / sqrt(mean(x^2) + eps)
///     y = n * gate + residual
///
/// Rows have the shape (rows, columns), or (rows, heads, columns of a head), with a last stride of 1. The other strides
/// are free, so a gate may be a view of a fused projection. The dtype is float32, bfloat16 or float16. The columns of a
/// row are at most 4096. The columns of a head are a multiple of 8. All tensors are on one GPU. Sums are in fp32, and
/// each result is rounded once.
struct Norm {
  enum class Kind : std::uint8_t { layer, rms };
  static constexpr int64_t most_columns = 4096;

  TensorView x;
  Kind kind = Kind::layer;
  double eps = 1e-5;
  std::optional<TensorView> weight = {};  ///< (columns of a row), contiguous; the dtype of x, or float32. Default: ones
  std::optional<TensorView> bias = {};    ///< the same, with the dtype of weight. Default: zeros
  std::optional<TensorView> gate = {};    ///< with the rows, columns and dtype of x, in either shape. Default: ones
  std::optional<TensorView> residual = {};  ///< the same. Default: zeros
  void* stream = nullptr;                   ///< the CUstream of the launches. Null is the legacy default stream
  Workspace workspace = {};                 ///< memory of the caller for norm_backward
};

/// The gradients that norm_backward computes. An empty view is a gradient that is not wanted. The gradient of the
/// residual is the gradient of y.
struct NormGradients {
  MutableTensorView x = {};
  MutableTensorView weight = {};
  MutableTensorView bias = {};
  MutableTensorView gate = {};
};

/// Computes y, with the shape and dtype of x, and the statistics that norm_backward reads: (rows, 2), float32,
/// contiguous, the mean (0 for rms) and rstd of each row.
///
/// y has no element in common with an input. Throws Error (runtime) if no GPU or no NVRTC is found.
///
///     gdpa::norm({.x = rows, .weight = weight, .stream = stream}, y, statistics);
GDPA_API void norm(const Norm& norm, const MutableTensorView& y, const MutableTensorView& statistics);

/// Computes the wanted gradients from the gradient of y. Gradients of weight and bias are sums over the rows in one
/// order, so they have the same bits every time. `norm` is the argument of the forward call. Its residual is not read.
GDPA_API void norm_backward(const Norm& norm, const TensorView& grad_y, const TensorView& statistics,
                            const NormGradients& gradients);

/// Returns the bytes of device memory that norm_backward needs for these gradients, for Norm::workspace: a multiple of
/// 256, or 0.
GDPA_API int64_t norm_workspace_bytes(const Norm& norm, const NormGradients& gradients);

}  // namespace gdpa
