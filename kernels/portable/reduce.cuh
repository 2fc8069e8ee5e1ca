// Rounds the fp32 accumulators of a gradient: adds the partial results of the splits in order, and writes the gradient
// in its own type and layout.
//
// Launch: grid any number of CTAs. Element and `columns` as in the kernel that wrote the accumulators.
#pragma once

#include "common/tile.cuh"
#include "portable/arguments.cuh"

namespace gdpa::portable {

template <class Config>
using reduce_cta = CtaShape<256>;

/// Config: using Element; int columns (of the output); bool aligned.
template <class Config>
__device__ void reduce(const ReduceArguments& arguments) {
  using Element = typename Config::Element;
  using Storage = typename Element::Storage;
  constexpr int groups = padded_columns(Config::columns) / column_group;
  constexpr int chunk = chunk_elements<Element>;
  const int64_t pieces = arguments.rows * arguments.heads * groups;
  for (int64_t piece = static_cast<int64_t>(blockIdx.x) * reduce_cta<Config>::threads + threadIdx.x; piece < pieces;
       piece += static_cast<int64_t>(gridDim.x) * reduce_cta<Config>::threads) {
    float sum[column_group] = {};
    for (int64_t split = 0; split < arguments.splits; ++split) {
      const auto* from = reinterpret_cast<const float4*>(arguments.partials + split * arguments.split_stride) +
                         piece * (column_group / 4);
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
    Storage* const to =
        static_cast<Storage*>(arguments.output.data) +
        arguments.output.offset(Sequences{}, row / arguments.rows_in_batch, row % arguments.rows_in_batch, head) +
        group * column_group;
#pragma unroll
    for (int first = 0; first < column_group; first += chunk) {
      if (group * column_group + first >= Config::columns) break;
      store_chunk<Config::aligned>(to + first, round_chunk<Element>(sum + first));
    }
  }
}

}  // namespace gdpa::portable
