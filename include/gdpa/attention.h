// The two calls: forward and backward of O = out_scale * f(scale * Q K^T) V over jagged, dense or shared operands.
#pragma once

#include <optional>
#include <string>

#include "gdpa/activation.h"
#include "gdpa/export.h"
#include "gdpa/mask.h"
#include "gdpa/plan.h"
#include "gdpa/tensor.h"

namespace gdpa {

/// What multiplies O after the sum over keys: a number, 1/L_q or 1/L_k (0 for a sequence without rows), or one number
/// for each batch entry.
struct OutScale {
  enum class Kind : int32_t { number, reciprocal_length_q, reciprocal_length_k, per_batch };
  Kind kind = Kind::number;
  double number = 1.0;        ///< for Kind::number
  TensorView per_batch = {};  ///< for Kind::per_batch: (batch), float32 or float64, on the device of the query

  static OutScale of(double number) { return {Kind::number, number, {}}; }
  static OutScale per_query() { return {Kind::reciprocal_length_q, 1.0, {}}; }
  static OutScale per_key() { return {Kind::reciprocal_length_k, 1.0, {}}; }
  static OutScale of_batch(TensorView numbers) { return {Kind::per_batch, 1.0, numbers}; }
};

/// Which gradients a backward call computes. A gradient that is not wanted has no output tensor, and the products that
/// only it needs are skipped.
struct WantedGradients {
  bool query = true;
  bool key = true;
  bool value = true;

  bool all() const { return query && key && value; }
  bool any() const { return query || key || value; }
  bool operator==(const WantedGradients&) const = default;
};

/// Device memory that a call may use until the work that it put on the stream is done; see workspace_bytes.
struct Workspace {
  static constexpr int64_t alignment = 256;  ///< bytes

  void* data = nullptr;  ///< aligned; null: the call takes memory from the stream's own pool and gives it back
  int64_t bytes = 0;
};

/// One attention problem with its inputs. For each batch entry and head
///     S = scale * Q K^T,   P = f(S) where the mask allows, else 0,   O = out_scale * P V.
///
/// Each side, queries and keys, comes in one of three forms:
///   jagged  rank 3, (tokens, heads, head_dim), with cumulative lengths (batch + 1, int32 or int64) that start at
///           0 or more, never fall, and end at the number of tokens or before. Rows before the first number and after
///           the last one belong to no sequence. On a GPU a call does not read the numbers on the host: kernels clamp
///           wrong ones (docs/compilation.md)
///   dense   rank 4, (batch, length, heads, head_dim), without cumulative lengths
///   shared  rank 3, (length, heads, head_dim), without cumulative lengths: one operand for the whole batch
///           (queries: PMA; keys and values: PFFN). The other side says how many batch entries there are; where both
///           sides are shared there is one.
///
/// query and key have the same head_dim, key and value the same tokens and heads, and the heads of query are a
/// multiple of those of key (GQA, MQA). All of one dtype: float32, float64 (CPU), bfloat16 or float16. On a GPU
/// head_dim and head_dim_v are multiples of 8 up to 256, and a sequence has at most 2^31 - 2^16 rows. The last stride
/// is 1; the others are free, so views of a fused QKV projection need no copy.
struct Attention {
  TensorView query;
  TensorView key;
  TensorView value;
  std::optional<TensorView> cu_seqlens_q = {};
  std::optional<TensorView> cu_seqlens_k = {};
  Activation activation = Activation("gelu");
  std::optional<double> scale = {};  ///< default: 1 / sqrt(head_dim)
  OutScale out_scale = {};
  Mask mask = {};
  Accuracy accuracy = Accuracy::fast;
  bool deterministic = false;  ///< the same bits every time; the CPU backend always is
  int threads = 0;             ///< CPU: at most so many threads, 0 for one on each processor
  void* stream = nullptr;      ///< GPU: the CUstream to launch on; null is the legacy default stream
  Workspace workspace = {};    ///< GPU: memory of the caller for backward's sums
  bool allow_tf32 = false;     ///< GPU, float32: one product of tf32 where full precision takes three
};

/// Computes O into `output`, whose shape is the query's with head_dim_v last; for a shared query with batch entries
/// (batch * length, heads, head_dim_v), or (batch, length, heads, head_dim_v). Its last stride is 1, its rows must not
/// overlap, and it has no element in common with an input. Rows that belong to no sequence become zeros: every
/// element of `output` is written.
///
/// Throws Error before anything is written when an argument does not fit; see docs/errors.md.
///
///     std::vector<float> output(tokens * heads * head_dim);
///     gdpa::forward({.query = q, .key = k, .value = v, .cu_seqlens_q = offsets, .cu_seqlens_k = offsets,
///                    .activation = gdpa::Activation("silu")},
///                   gdpa::MutableTensorView::contiguous(output.data(), gdpa::DType::float32,
///                                                       {tokens, heads, head_dim}));
GDPA_API void forward(const Attention& attention, const MutableTensorView& output);

/// Computes the gradients of query, key and value from that of the output, recomputing the scores. The gradient of a
/// shared or grouped operand is the sum over all who read it. Shapes as the inputs'; any strides, the last one 1. No
/// gradient has an element in common with an input or with another gradient; they may be views of one fused tensor.
///
/// An empty view, MutableTensorView{}, means that this gradient is not wanted: it is not computed, and products that
/// only it needs are skipped. At least one gradient must be wanted. Keys and values that are not trained:
///
///     gdpa::backward(attention, grad_output, grad_query, {}, {});
GDPA_API void backward(const Attention& attention, const TensorView& grad_output, const MutableTensorView& grad_query,
                       const MutableTensorView& grad_key, const MutableTensorView& grad_value);

/// GPU: bytes of device memory that a call needs beyond inputs and outputs, for Attention::workspace; a multiple of
/// 256. It may depend on the gradients too, on their strides and on whether rows begin at multiples of 16 bytes:
/// without them it is for contiguous ones that begin so.
GDPA_API int64_t workspace_bytes(const Attention& attention, Direction direction, const WantedGradients& wanted = {});
GDPA_API int64_t workspace_bytes(const Attention& attention, const TensorView& grad_output,
                                 const MutableTensorView& grad_query, const MutableTensorView& grad_key,
                                 const MutableTensorView& grad_value);

/// Multiplications and additions of the matrix products of forward (two) or backward (five, fewer where a gradient is
/// not wanted), over the scores that the mask keeps. Operands may have null data. Nothing is compiled, and no function
/// of a GPU's driver is called, so it may be used while a CUDA graph is captured. On a GPU cumulative lengths are
/// therefore not read: all sequences of a jagged operand are taken to have its mean length. Everything else is exact.
GDPA_API double flops(const Attention& attention, Direction direction, const WantedGradients& wanted = {});

/// What forward or backward would run for this problem, without running it. Only shapes, types and cumulative lengths
/// are read: operands may have null data. On a GPU its kernels are compiled, as by compile(). With an architecture
/// ("sm_90a") it is the plan for a GPU that need not be there; the operands may be described as if in host memory.
GDPA_API Plan explain(const Attention& attention, Direction direction, const std::string& architecture = "",
                      const WantedGradients& wanted = {});

}  // namespace gdpa
