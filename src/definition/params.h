// Params: the pointers, 64-bit strides, lengths and numbers that a kernel receives. src/api fills the struct, and all
// backends read it. The header includes no standard library, because NVRTC compiles it too. The definition that all
// backends compute, for batch entry b, query head h and key head h / group:
//
//     S  = scale * Q K^T                        P  = f(S) where the mask allows, else 0
//     O  = out_scale(b) * P V                  + Q with Problem::add_query
//     dV = out_scale(b) * P^T dO                dS = out_scale(b) * (dO V^T) * f'(S), 0 where masked
//     dQ = scale * dS K                         dK = scale * dS^T Q
//                                              dQ + dO with Problem::add_query
//
// out_scale may also have one number r for each query i: O_i = r_i (P V)_i, and backward has r_i dO_i in place of dO_i.
#pragma once

#include "definition/bound_tensor.h"
#include "definition/layout.h"
#include "definition/tile_lists.h"
#include "gdpa/mask.h"

namespace gdpa {

/// The copies of the sums of the gradients of tensors. CTAs with different copies do not wait for each other when they
/// add to one element.
struct ParameterSums {
  int32_t copies = 1;       ///< a power of 2; params.grad_parameters are the first copy
  int64_t copy_bytes = 0;   ///< from the sums of a copy to the same sums of the next copy
  void* borders = nullptr;  ///< if terms are stored: `copy_bytes` of sums (kernels/hopper/stored_terms.cuh)
};

/// out_scale in the form for kernels: one number, 1 / length, one number for each batch entry, or one for each query.
struct OutputScale {
  enum class Kind : int32_t {
    number,
    reciprocal_length_q,
    reciprocal_length_k,
    per_batch_float,
    per_batch_double,
    per_row_float,
    per_row_double
  };
  Kind kind = Kind::number;
  double number = 1.0;
  const void* numbers = nullptr;  ///< of the batch entries, or of the rows of the query operand
  int64_t row_stride = 1;         ///< of the numbers of rows, in elements

  /// The factor of a batch entry; 1 if each query has its own factor.
  GDPA_HOST_DEVICE double of(int64_t b, int64_t length_q, int64_t length_k) const {
    switch (kind) {
      case Kind::number:
      case Kind::per_row_float:
      case Kind::per_row_double:
        return number;
      case Kind::reciprocal_length_q:
        return length_q > 0 ? 1.0 / static_cast<double>(length_q) : 0.0;
      case Kind::reciprocal_length_k:
        return length_k > 0 ? 1.0 / static_cast<double>(length_k) : 0.0;
      case Kind::per_batch_float:
        return static_cast<double>(static_cast<const float*>(numbers)[b]);
      case Kind::per_batch_double:
        return static_cast<const double*>(numbers)[b];
    }
    return number;
  }

  GDPA_HOST_DEVICE bool is_per_row() const { return kind == Kind::per_row_float || kind == Kind::per_row_double; }

  /// The factor of a row of the query operand, counted over all sequences, if each query has its own factor.
  GDPA_HOST_DEVICE double of_row(int64_t token) const {
    return kind == Kind::per_row_double ? static_cast<const double*>(numbers)[token * row_stride]
                                        : static_cast<double>(static_cast<const float*>(numbers)[token * row_stride]);
  }
};

struct Params {
  int64_t batch = 0;
  int64_t heads_q = 0;
  int64_t heads_k = 0;     ///< divides heads_q
  int64_t head_dim = 0;    ///< of query and key
  int64_t head_dim_v = 0;  ///< of value and output
  Sequences queries;       ///< rows of query and its gradient
  Sequences keys;          ///< rows of key, value and their gradients
  Sequences outputs;       ///< rows of output and grad_output: only `begins`. Null data: the rows of the queries
  Operand query, key, value;
  Operand output;       ///< forward only
  Operand grad_output;  ///< backward only, as the next three
  Operand grad_query, grad_key, grad_value;
  double scale = 1.0;
  OutputScale out_scale;
  Mask mask;
  BoundTensors parameters;                       ///< of the function
  BoundTensor grad_parameters[most_parameters];  ///< backward: the sums of their gradients; null data if not wanted
  ParameterSums parameter_sums;                  ///< backward: the copies of these sums
  BoundTensors mask_parameters;                  ///< of the mask, if it is an expression
  TileLists tile_lists[most_tile_lists];         ///< of a mask expression, on a GPU

  /// The side with the rows of output and grad_output.
  GDPA_HOST_DEVICE const Sequences& output_side() const { return outputs.is_jagged() ? outputs : queries; }
  GDPA_HOST_DEVICE int64_t key_head(int64_t query_head) const { return query_head / (heads_q / heads_k); }
};

}  // namespace gdpa
