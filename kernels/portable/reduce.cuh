// Rounds the fp32 sums of gradients that several CTAs contribute to: adds the slabs, where there are several, in
// order, and writes the gradient in its own type and layout.
//
// Launch: grid any number of CTAs, block reduce_threads, no shared memory. Element and `columns` as in the kernel that
// made the sums.
#pragma once

#include "common/tile.cuh"

namespace gdpa::portable {

struct ReduceArguments {
  const float* sums;    ///< (slabs, rows, heads, padded_columns(columns)), in the order of visit_sums
  int64_t slab_stride;  ///< floats from one slab to the next
  int64_t slabs;
  int64_t rows;           ///< packed rows, or batch * length, or length where the batch shares the operand
  int64_t rows_in_batch;  ///< rows between batch strides of `output`: its length where dense, else `rows`
  int64_t heads;
  Operand output;
};

constexpr int reduce_threads = 256;

/// Config: using Element; int columns (of the output); bool aligned.
template <class Config>
__global__ void __launch_bounds__(reduce_threads) reduce(const __grid_constant__ ReduceArguments arguments) {
  using Element = typename Config::Element;
  using Storage = typename Element::Storage;
  constexpr int groups = padded_columns(Config::columns) / column_group;
  constexpr int chunk = chunk_elements<Element>;
  const int64_t pieces = arguments.rows * arguments.heads * groups;
  for (int64_t piece = static_cast<int64_t>(blockIdx.x) * reduce_threads + threadIdx.x; piece < pieces;
       piece += static_cast<int64_t>(gridDim.x) * reduce_threads) {
    float sum[column_group] = {};
    for (int64_t slab = 0; slab < arguments.slabs; ++slab) {
      const auto* from =
          reinterpret_cast<const float4*>(arguments.sums + slab * arguments.slab_stride) + piece * (column_group / 4);
#pragma unroll
      for (int i = 0; i < column_group / 4; ++i) {
        const float4 four = from[i];
        sum[column_of(i * 4)] += four.x;
        sum[column_of(i * 4 + 1)] += four.y;
        sum[column_of(i * 4 + 2)] += four.z;
        sum[column_of(i * 4 + 3)] += four.w;
      }
    }
    const int group = static_cast<int>(piece % groups);
    const int64_t head = piece / groups % arguments.heads;
    const int64_t row = piece / groups / arguments.heads;
    auto* to =
        static_cast<Storage*>(arguments.output.data) +
        arguments.output.offset(Sequences{}, row / arguments.rows_in_batch, row % arguments.rows_in_batch, head) +
        group * column_group;
#pragma unroll
    for (int first = 0; first < column_group; first += chunk) {
      if (group * column_group + first >= Config::columns) break;
      const uint4 rounded = round_chunk<Element>(sum + first);
      if constexpr (Config::aligned) {
        *reinterpret_cast<uint4*>(to + first) = rounded;
      } else {
        scatter_chunk(to + first, rounded);
      }
    }
  }
}

}  // namespace gdpa::portable
