// Params: the pointers, 64-bit strides, lengths and numbers that a kernel receives. src/api fills the struct, and all
// backends read it. The header includes no standard library, because NVRTC compiles it too. The definition that all
// backends compute, for batch entry b, query head h and key head h / group:
//
//     S  = scale * Q K^T                        P  = f(S) where the mask allows, else 0
//     O  = out_scale(b) * P V                  + Q with Problem::add_query
//     dV = out_scale(b) * P^T dO                dS = out_scale(b) * (dO V^T) * f'(S), 0 where masked
//     dQ = scale * dS K                         dK = scale * dS^T Q
//                                              dQ + dO with Problem::add_query
#pragma once

#include "definition/bound_tensor.h"
#include "definition/layout.h"
#include "definition/tile_lists.h"
#include "gdpa/mask.h"

namespace gdpa {

/// out_scale in the form for kernels: one number, 1 / length, or one number for each batch entry.
struct OutputScale {
  enum class Kind : int32_t { number, reciprocal_length_q, reciprocal_length_k, per_batch_float, per_batch_double };
  Kind kind = Kind::number;
  double number = 1.0;
  const void* per_batch = nullptr;

  GDPA_HOST_DEVICE double of(int64_t b, int64_t length_q, int64_t length_k) const {
    switch (kind) {
      case Kind::number:
        return number;
      case Kind::reciprocal_length_q:
        return length_q > 0 ? 1.0 / static_cast<double>(length_q) : 0.0;
      case Kind::reciprocal_length_k:
        return length_k > 0 ? 1.0 / static_cast<double>(length_k) : 0.0;
      case Kind::per_batch_float:
        return static_cast<double>(static_cast<const float*>(per_batch)[b]);
      case Kind::per_batch_double:
        return static_cast<const double*>(per_batch)[b];
    }
    return number;
  }
};

struct Params {
  int64_t batch = 0;
  int64_t heads_q = 0;
  int64_t heads_k = 0;     ///< divides heads_q
  int64_t head_dim = 0;    ///< of query and key
  int64_t head_dim_v = 0;  ///< of value and output
  Sequences queries;       ///< rows of query, output and their gradients
  Sequences keys;          ///< rows of key, value and their gradients
  Operand query, key, value;
  Operand output;       ///< forward only
  Operand grad_output;  ///< backward only, as the next three
  Operand grad_query, grad_key, grad_value;
  double scale = 1.0;
  OutputScale out_scale;
  Mask mask;
  BoundTensors parameters;                       ///< of the function
  BoundTensor grad_parameters[most_parameters];  ///< backward: the sums of their gradients; null data if not wanted
  BoundTensors mask_parameters;                  ///< of the mask, if it is an expression
  TileLists tile_lists[most_tile_lists];         ///< of a mask expression, on a GPU

  GDPA_HOST_DEVICE int64_t key_head(int64_t query_head) const { return query_head / (heads_q / heads_k); }
};

}  // namespace gdpa
