// Forward and backward of O = out_scale * f(scale * Q K^T) V over jagged, dense or shared operands.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gdpa/activation.h"
#include "gdpa/export.h"
#include "gdpa/mask.h"
#include "gdpa/mask_expression.h"
#include "gdpa/plan.h"
#include "gdpa/tensor.h"

namespace gdpa {

/// The factor of O after the sum over keys. All gradients include it. It is one of these:
///   - a number
///   - 1/L_q or 1/L_k, which is 0 for a sequence without rows
///   - one number for each batch entry
///   - one number for each row of the query
///
/// With numbers of rows, backward computes with r f(s), where r is the number of the row. The numbers are then one more
/// tensor of the function, and may have a gradient. A GPU always does this, the CPU only for that gradient. The
/// function of the call may therefore read at most seven tensors, one less than otherwise.
struct OutScale {
  enum class Kind : int32_t { number, reciprocal_length_q, reciprocal_length_k, per_batch, per_row };
  Kind kind = Kind::number;
  double number = 1.0;        ///< for Kind::number
  TensorView per_batch = {};  ///< for Kind::per_batch: (batch), float32 or float64, on the device of the query
  /// For Kind::per_row: float32, or on the CPU float64. The shape is (tokens) for a jagged query, (length) for a shared
  /// query, and (batch, length) for a dense query, whose rows have one distance in memory.
  TensorView per_row = {};

  static OutScale of(double number) { return {Kind::number, number, {}}; }
  static OutScale per_query() { return {Kind::reciprocal_length_q, 1.0, {}}; }
  static OutScale per_key() { return {Kind::reciprocal_length_k, 1.0, {}}; }
  static OutScale of_batch(TensorView numbers) { return {Kind::per_batch, 1.0, numbers}; }
  static OutScale of_rows(TensorView numbers) { return {Kind::per_row, 1.0, {}, numbers}; }
};

/// A tensor of the call (Activation::parameters() or MaskExpression::tensors()). The strides may have any value.
///
/// A tensor that the expression reads without an index:
///   - has shape (), one number for all query heads, or (heads), one number for each query head
///   - is float32, or on the CPU float64
///
/// A tensor that the expression reads by index, as in "s + table[head, clamp(q_idx - kv_idx, 0, 127)]":
///   - has one axis for each index. An index beyond an axis is clamped, so an axis of size 1 is broadcast
///   - has at least as many elements as the packed query has rows on an axis whose index is q_row alone, or exactly
///     one. The same holds for kv_row and the packed key
///   - is float32, bfloat16, float16, int32 or int64, or on the CPU float64. A tensor that is an index is int32 or
///     int64
struct Parameter {
  std::string name;
  TensorView value;
};

/// The gradient of a tensor of the call, in its shape. backward() overwrites it. The dtype is float32, and may also be
/// float64 on the CPU, or the dtype of the tensor on a GPU. compile() and explain() assume the dtype of the tensor.
struct ParameterGradient {
  std::string name;
  MutableTensorView value;
};

/// The gradients that a backward call computes. An unwanted gradient has no output tensor, and backward skips the
/// products that only this gradient needs.
struct WantedGradients {
  bool query = true;
  bool key = true;
  bool value = true;
  uint32_t parameters = 0;  ///< bit n: the tensor Activation::parameters()[n]
  bool out_scale = false;   ///< one number for each row of the query

  bool all() const { return query && key && value; }
  bool of_operands() const { return query || key || value; }
  bool any() const { return of_operands() || parameters != 0 || out_scale; }
  bool operator==(const WantedGradients&) const = default;
};

/// Device memory of the caller for the intermediate sums of a call. The memory must stay valid until the work of the
/// call on the stream is done. workspace_bytes returns the size.
struct Workspace {
  static constexpr int64_t alignment = 256;  ///< bytes

  /// A multiple of `alignment`. With null, the call allocates from the memory pool of the stream.
  void* data = nullptr;
  int64_t bytes = 0;
};

/// A mask expression whose tiles are classified (gdpa/prepared_mask.h).
struct PreparedMask {
  void* data = nullptr;  ///< device memory of the caller, which the calls read
  int64_t bytes = 0;
  std::string tiles;  ///< a text that describes the lists in `data` and the calls that they are for
};

/// One attention problem with its inputs. For each batch entry and head
///     S = scale * Q K^T,   P = f(S) where the mask allows, else 0,   O = out_scale * P V.
///
/// Each side, queries and keys, comes in one of four forms:
///   jagged  rank 3, (tokens, heads, head_dim), with cumulative lengths (batch + 1, int32 or int64). The first number
///           is 0 or more, no number is below the one before it, and the last number is at most the number of tokens.
///           Rows before the first number and after the last number belong to no sequence. On a GPU the host does not
///           read the numbers, and the kernels clamp wrong ones (docs/compilation.md).
///   gapped  rank 3, (tokens, heads, head_dim), with the begin and the end of each sequence (batch, 2; int32 or int64).
///           Sequence b has the rows from its begin up to, not including, its end. Sequences are in any order, and rows
///           between them belong to no sequence. Sequences of queries must not overlap. Sequences of keys may overlap:
///           the gradient of a common key is the sum over its sequences.
///   dense   rank 4, (batch, length, heads, head_dim), without cumulative lengths
///   shared  rank 3, (length, heads, head_dim), without cumulative lengths: one operand for the whole batch
///           (queries: PMA; keys and values: PFFN). The other side gives the number of batch entries. If both sides
///           are shared, there is one batch entry.
///
/// With a batch map kv_of, (batch, int32 or int64), query entry b attends to the keys and values of entry kv_of[b]. The
/// keys are then not shared, and their number of entries is free. Several query entries may have the same keys, whose
/// gradient is the sum over these entries. docs/layouts.md has pictures.
///
/// With a block_table, (batch, pages of an entry, int32 or int64), keys and values are in pages: key and value have the
/// shape (pages, rows of a page, heads, head_dim), and rows [n r, (n + 1) r) of entry b are page block_table[b, n],
/// where r, the rows of a page, is a multiple of 16. Entry b has the first seqused_k[b] of these rows (batch, int32 or
/// int64). Only forward accepts pages.
///
/// With output_offsets, (batch, int32 or int64), the output and its gradient have rows of their own: rank 3,
/// (any number of rows, heads, head_dim_v), where the rows of entry b begin at output_offsets[b]. No row may belong to
/// two entries. The queries are jagged, gapped or shared.
///
/// With add_query, forward adds the query to the output, and backward adds the gradient of the output to the gradient
/// of the query, also in rows that belong to no sequence. On a GPU, the result without add_query may be rounded before
/// the addition (docs/kernels/fused-norms.md). head_dim_v must be head_dim, and the batch must not share the query. The
/// output has the rows of the query, and zeroes_output is true.
///
/// query and key have the same head_dim. key and value have the same tokens and heads. The number of query heads is a
/// multiple of the number of key heads (GQA, MQA). All operands have one dtype: float32, float64 (CPU only), bfloat16
/// or float16. On a GPU, head_dim and head_dim_v are multiples of 8 up to 256, and a sequence has at most 2^31 - 2^16
/// rows. The last stride is 1. The other strides are free, so a view of a fused QKV projection needs no copy.
struct Attention {
  TensorView query;
  TensorView key;
  TensorView value;
  std::optional<TensorView> cu_seqlens_q = {};
  std::optional<TensorView> cu_seqlens_k = {};
  std::optional<TensorView> seq_offsets_q = {};   ///< in place of cu_seqlens_q: begin and end of each sequence
  std::optional<TensorView> seq_offsets_k = {};   ///< in place of cu_seqlens_k
  std::optional<TensorView> kv_of = {};           ///< the batch map
  std::optional<TensorView> block_table = {};     ///< the pages of keys and values
  std::optional<TensorView> seqused_k = {};       ///< with pages: the number of keys of each batch entry
  std::optional<TensorView> output_offsets = {};  ///< the first row of the output of each batch entry
  /// Whether rows of the output that belong to no batch entry become 0. Otherwise they keep their contents, which needs
  /// seq_offsets_q or output_offsets.
  bool zeroes_output = true;
  Activation activation = Activation("gelu");
  std::vector<Parameter> parameters = {};  ///< one for each of activation.parameters(), in any order
  std::optional<double> scale = {};        ///< default: 1 / sqrt(head_dim)
  OutScale out_scale = {};
  Mask mask = {};
  std::optional<MaskExpression> mask_expression = {};  ///< instead of a window in `mask`
  std::vector<Parameter> mask_parameters = {};         ///< one for each of mask_expression->tensors(), in any order
  std::optional<PreparedMask> prepared_mask = {};      ///< of mask_expression
  Accuracy accuracy = Accuracy::fast;
  bool deterministic = false;  ///< the same bits every time, and on a GPU in every batch; see docs/support.md
  int threads = 0;             ///< CPU: the largest number of threads. 0 means one for each processor
  void* stream = nullptr;      ///< GPU: the CUstream of the launches. Null is the legacy default stream
  Workspace workspace = {};    ///< GPU: memory of the caller for backward
  bool allow_tf32 = false;     ///< GPU, float32: one product of tf32 instead of three, with the precision of tf32
  bool add_query = false;      ///< O = out_scale * P V + Q, a residual connection; see above
};

/// Computes O into `output`, with the dtype of the query.
///
/// The shape of `output` is the shape of the query with head_dim_v in place of head_dim. For a shared query it is
/// (batch * length, heads, head_dim_v) or (batch, length, heads, head_dim_v). The last stride is 1. No two elements
/// have the same address, and no element belongs to an input. The call writes every element: rows that belong to no
/// sequence become 0, before add_query adds the query, unless attention.zeroes_output is false.
///
/// Throws Error if an argument is wrong, before it writes anything. docs/errors.md lists the errors.
///
///     std::vector<float> output(tokens * heads * head_dim);
///     gdpa::forward({.query = q, .key = k, .value = v, .cu_seqlens_q = offsets, .cu_seqlens_k = offsets,
///                    .activation = gdpa::Activation("silu")},
///                   gdpa::MutableTensorView::contiguous(output.data(), gdpa::DType::float32,
///                                                       {tokens, heads, head_dim}));
GDPA_API void forward(const Attention& attention, const MutableTensorView& output);

/// Computes the gradients of query, key and value from the gradient of the output. It computes the scores again.
///
/// grad_output has the shape of the output of forward, and each gradient has the shape of its input. The dtype is that
/// of the query. The last stride is 1, and the other strides are free. The gradient of a shared operand is the sum over
/// the batch, and the gradient of a key head that several query heads read is the sum over these heads. A gradient has
/// no element in common with an input or with another gradient, but the gradients may be interleaved views of one fused
/// tensor. Rows that belong to no sequence become 0.
///
/// An empty view, MutableTensorView{}, means that this gradient is not wanted. `grad_parameters` has the wanted
/// gradients of the tensors of the call: the sums over all scores that read an element. Positions that share an
/// element, such as the batch entries of an axis of size 1, are summed. `grad_out_scale` is the gradient of
/// OutScale::per_row, in its shape: for each row of the query, the sum of dO * P V over all heads and columns. Its
/// dtype is float32, or on the CPU float64. At least one gradient must be wanted. This example needs no gradient of
/// keys and values:
///
///     gdpa::backward(attention, grad_output, grad_query, {}, {});
GDPA_API void backward(const Attention& attention, const TensorView& grad_output, const MutableTensorView& grad_query,
                       const MutableTensorView& grad_key, const MutableTensorView& grad_value,
                       const std::vector<ParameterGradient>& grad_parameters = {},
                       const MutableTensorView& grad_out_scale = {});

/// Returns the bytes of device memory that a call needs in addition to inputs and outputs, for Attention::workspace: a
/// multiple of 256, or 0. It is 0 on the CPU.
///
/// The size can depend on the dtypes and strides of the gradients, and on whether their rows begin at multiples of 16
/// bytes. The first form assumes that the gradients are contiguous, that their rows begin at multiples of 16 bytes, and
/// that gradients of tensors have the dtypes of the tensors. The second form takes the gradients of the call.
///
///     attention.workspace.bytes = gdpa::workspace_bytes(attention, gdpa::Direction::backward);
///     cudaMalloc(&attention.workspace.data, attention.workspace.bytes);
GDPA_API int64_t workspace_bytes(const Attention& attention, Direction direction, const WantedGradients& wanted = {});
GDPA_API int64_t workspace_bytes(const Attention& attention, const TensorView& grad_output,
                                 const MutableTensorView& grad_query, const MutableTensorView& grad_key,
                                 const MutableTensorView& grad_value,
                                 const std::vector<ParameterGradient>& grad_parameters = {},
                                 const MutableTensorView& grad_out_scale = {});

/// Returns the number of multiplications and additions in the matrix products of forward (two products) or backward
/// (five products, fewer if a gradient is not wanted), over the scores inside the mask. Operands may have null data.
///
/// The function compiles nothing and calls no driver, so it can be called while a CUDA graph is captured. On a GPU it
/// does not read cumulative lengths: it assumes that each sequence of a jagged operand has the mean length. Otherwise
/// the number is exact. With a mask expression, the function evaluates the condition of every score. If a tensor of the
/// mask has null data, the mask is taken to keep all scores.
///
///     const double seconds = gdpa::flops(attention, gdpa::Direction::forward) / 500e12;  // at 500 TFLOP/s
GDPA_API double flops(const Attention& attention, Direction direction, const WantedGradients& wanted = {});

/// Returns the plan of forward or backward for this problem, without computing it. It reads only shapes, types and
/// cumulative lengths, so operands may have null data. On a GPU it compiles the kernels, and throws Error, as compile()
/// does. With an architecture ("sm_90a") the plan is for a GPU of this architecture, which the machine need not have,
/// and the operands may be on the CPU.
///
///     std::puts(gdpa::to_string(gdpa::explain(attention, gdpa::Direction::backward, "sm_90a")).c_str());
GDPA_API Plan explain(const Attention& attention, Direction direction, const std::string& architecture = "",
                      const WantedGradients& wanted = {});

}  // namespace gdpa
