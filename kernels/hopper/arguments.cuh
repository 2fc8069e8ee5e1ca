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

struct BackwardArguments {
  portable::Arguments common;
  float scale;  ///< that of params
  MappedOperand query, key, value, grad_output;
};

}  // namespace gdpa::hopper
