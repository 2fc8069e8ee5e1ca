// Rows of gradients and outputs in global memory: the destination of dK and dV, and stores from the accumulators of a
// warpgroup (wgmma.cuh), 16 bytes for each lane.
#pragma once

#include "common/types.cuh"
#include "hopper/arguments.cuh"
#include "pipeline/warpgroup.cuh"

namespace gdpa::hopper {

/// The destination of dK and dV of a key tile: the gradients. With broadcast K/V, these are fp32 partial results, one for
/// each split of the batch. A later kernel adds the partial results in order (portable/reduce.cuh).
template <class Config, bool keys_shared = Config::keys_shared>
struct KeyGradients {
  using Element = typename Config::Element;
  static constexpr int columns = Config::head_dim, columns_v = Config::head_dim_v;

  static __device__ const Operand& of_key(const BackwardArguments& arguments) {
    return arguments.common.params.grad_key;
  }
  static __device__ const Operand& of_value(const BackwardArguments& arguments) {
    return arguments.common.params.grad_value;
  }
};

template <class Config>
struct KeyGradients<Config, true> {
  using Element = Float32;
  static constexpr int columns = padded_columns(Config::head_dim), columns_v = padded_columns(Config::head_dim_v);

  static __device__ const Operand& of_key(const BackwardArguments& arguments) {
    return arguments.common.grad_key_accumulator;
  }
  static __device__ const Operand& of_value(const BackwardArguments& arguments) {
    return arguments.common.grad_value_accumulator;
  }
};

/// Transposes the words of four lanes with four words each: word i of lane t becomes word t of lane i.
__device__ inline void exchange_in_quad(unsigned (&words)[4]) {
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool upper = (threadIdx.x & static_cast<unsigned>(step)) != 0;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int low = step == 1 ? pair * 2 : pair;
      const unsigned received = __shfl_xor_sync(0xffffffffu, upper ? words[low] : words[low + step], step);
      words[low] = upper ? received : words[low];
      words[low + step] = upper ? words[low + step] : received;
    }
  }
}

/// Stores of_row(row)(sum, column) of each sum, rounded, as the 64 rows from `first` on, of which `rows` exist. The
/// four lanes that hold a row exchange parts of it, so that each has 16 bytes together.
template <class Element, int valid_columns, int half_columns, class OfRow>
__device__ __forceinline__ void store_rows_from_registers(const float (&accumulators)[half_columns], OfRow of_row,
                                                          typename Element::Storage* first, int64_t row_stride,
                                                          int rows) {
  const unsigned thread = thread_in_warpgroup(), lane = thread % 32;
  const int row = static_cast<int>(thread / 32 * 16 + lane / 4);
  const int column = static_cast<int>(lane % 4 * 8);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    typename Element::Storage* const to = first + (row + half * 8) * row_stride + column;
    const auto last_step = of_row(row + half * 8);
#pragma unroll
    for (int j = 0; j < half_columns / 16; ++j) {
      unsigned parts[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int sum = (j * 4 + i) * 4 + half * 2;
        const int column_of_sum = j * 32 + i * 8 + static_cast<int>(lane % 4 * 2);
        parts[i] = Element::pack(last_step(accumulators[sum], column_of_sum),
                                 last_step(accumulators[sum + 1], column_of_sum + 1));
      }
      exchange_in_quad(parts);
      if (row + half * 8 < rows && j * 32 + column < valid_columns) {
        *reinterpret_cast<uint4*>(to + j * 32) = uint4{parts[0], parts[1], parts[2], parts[3]};
      }
    }
  }
}

/// Stores factor * sums into fp32 sums, the 64 rows from `first` on of which `rows` exist: four lanes have 16 columns
/// of a row, in their order (column_of in common/tile.cuh).
template <int valid_columns, int half_columns>
__device__ __forceinline__ void store_fp32_from_registers(const float (&accumulators)[half_columns], float factor,
                                                          float* first, int64_t row_stride, int rows) {
  const unsigned thread = thread_in_warpgroup(), lane = thread % 32;
  const int row = static_cast<int>(thread / 32 * 16 + lane / 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float* const to = first + (row + half * 8) * row_stride + lane % 4 * 4;
#pragma unroll
    for (int j = 0; j < half_columns / 8; ++j) {
      const float* const of_group = accumulators + j * 8 + half * 2;
      if (row + half * 8 < rows && j * column_group < valid_columns) {
        *reinterpret_cast<float4*>(to + j * column_group) =
            float4{of_group[0] * factor, of_group[1] * factor, of_group[4] * factor, of_group[5] * factor};
      }
    }
  }
}

/// Writes `rows` rows, by a warp: copies of the rows from `from` on, or zeros if `from` is null. The loop takes few
/// registers, because the warps that call it have few.
template <class Element, int columns>
__device__ void fill_rows(typename Element::Storage* to, int64_t row_stride, int rows,
                          const typename Element::Storage* from = nullptr, int64_t from_stride = 0) {
  constexpr int elements = 16 / Element::bytes, chunks = columns / elements;
  static_assert(chunks <= 32, "a chunk for each lane");
  const auto lane = static_cast<int>(thread_in_warpgroup() % 32);
  if (lane >= chunks) return;
  int64_t at = lane * elements, source = at;
#pragma unroll 1
  for (; rows > 0; --rows, at += row_stride, source += from_stride) {
    *reinterpret_cast<uint4*>(to + at) =
        from == nullptr ? uint4{0, 0, 0, 0} : *reinterpret_cast<const uint4*>(from + source);
  }
}

}  // namespace gdpa::hopper
