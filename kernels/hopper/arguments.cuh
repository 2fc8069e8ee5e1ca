// What the launcher passes to the Hopper kernels. Plain structs: the host includes this file too.
#pragma once

#include "hopper/tensor_map.cuh"
#include "portable/arguments.cuh"

namespace gdpa::hopper {

/// Columns of O in the registers of a warpgroup: those of a product that wgmma.cuh has.
GDPA_HOST_DEVICE constexpr int output_columns(int head_dim_v) {
  if (head_dim_v <= 64) return 64;
  return head_dim_v <= 192 ? (head_dim_v + 31) / 32 * 32 : 256;
}

/// An operand, as the copy engine sees it. `extent` is that of x; batch_step is how far y goes from one batch entry to
/// the next where the operand is not packed: 1, or 0 where the batch shares it.
struct MappedOperand {
  TensorMap map;
  int extent;
  int batch_step;
};

struct ForwardArguments {
  portable::Arguments common;
  float scale;   ///< that of params; multiplied from where it lies, it takes no register
  bool in_runs;  ///< each CTA takes places that follow each other, else one of every gridDim
  MappedOperand query, key, value, output;
};

/// Sums of dQ: (heads, two halves of the columns, rows), each row contiguous in columns of a half.
GDPA_HOST_DEVICE constexpr int half_columns(int head_dim) { return head_dim <= 64 ? 32 : 64; }
GDPA_HOST_DEVICE inline portable::SumLayout sum_layout(int head_dim, int64_t rows) {
  const int columns = half_columns(head_dim);
  return {columns, 2 * rows * columns, rows * columns, columns / 16, 1};
}

/// What the sums of dQ still are to be multiplied by: scale, and out_scale where it is one number.
GDPA_HOST_DEVICE inline float grad_query_factor(const Params& params) {
  const bool is_number = params.out_scale.kind == OutputScale::Kind::number;
  return static_cast<float>(params.scale * (is_number ? params.out_scale.number : 1.0));
}

/// A tile of keys of one head, and the tiles of queries that meet it: `query_tiles` of each head of its group.
struct KeyTile {
  int steps;       ///< tiles of queries of all heads; 0: there are no more tiles of keys
  int query_tiles;
  int full_begin;  ///< tiles of queries [full_begin, full_end) of a head need no test of their scores
  int full_end;
  int first_query;
  int first_key;
  int length_q;
  int length_k;
  int first_head;  ///< of the group
  int key_head;
  float out_scale;
  float grad_query_factor;  ///< what the rounding of dQ leaves to be multiplied
  MapOrigin query;    ///< of the first tile's first row
  int grad_output_y;  ///< with x of the query
  MapOrigin key;      ///< of the first key
  int value_y;        ///< with x of the key
  int64_t grad_query;  ///< the row first_query among those of the sums
  int64_t grad_key;    ///< from the operand's data to the row first_key of key_head
  int64_t grad_value;
};

struct BackwardArguments {
  portable::Arguments common;
  float scale;             ///< that of params
  unsigned places;         ///< in the table
  unsigned* places_taken;  ///< zeroed before
  KeyTile* key_tiles;      ///< the table
  MappedOperand query, key, value, grad_output;
};

}  // namespace gdpa::hopper
