// Writes zeros to the rows of a result that belong to no sequence, if each sequence has a begin and an end. The other
// kernels write the rows of sequences only. Sequences may be in any order and may overlap.
//
// Launch: grid any number of CTAs, best rows / clear_gaps_rows.
#pragma once

#include "common/sequence.cuh"
#include "portable/arguments.cuh"

namespace gdpa::portable {

template <class Config>
using clear_gaps_cta = CtaShape<256>;

/// Writes zeros to one row of one head. By a warp.
template <class Words>
__device__ void clear_row(unsigned char* row, int64_t bytes) {
  const auto lane = static_cast<int64_t>(threadIdx.x % 32);
  const int64_t words = bytes / static_cast<int64_t>(sizeof(Words));
  for (int64_t i = lane; i < words; i += 32) reinterpret_cast<Words*>(row)[i] = Words{};
}

template <class Config>
__device__ void clear_gaps(const ClearGapsArguments& arguments) {
  constexpr int threads = clear_gaps_cta<Config>::threads, warps = threads / 32;
  __shared__ bool has_sequence[clear_gaps_rows];
  const auto thread = static_cast<int>(threadIdx.x);
  const int64_t step = int64_t{gridDim.x} * clear_gaps_rows;
  for (int64_t first = int64_t{blockIdx.x} * clear_gaps_rows; first < arguments.rows; first += step) {
    const int64_t last = clamp(first + clear_gaps_rows, 0, arguments.rows);
    for (int row = thread; row < clear_gaps_rows; row += threads) has_sequence[row] = false;
    __syncthreads();
    for (int64_t b = thread; b < arguments.batch; b += threads) {
      const int64_t begin = clamp(arguments.side.begin(b), first, last);
      const int64_t end = clamp(arguments.side.end(b), begin, last);
      for (int64_t row = begin; row < end; ++row) has_sequence[row - first] = true;
    }
    __syncthreads();
    for (int64_t i = thread / 32; i < (last - first) * arguments.heads; i += warps) {
      const int64_t row = i / arguments.heads, head = i % arguments.heads;
      if (has_sequence[row]) continue;
      unsigned char* const address =
          arguments.result + (first + row) * arguments.row_stride + head * arguments.head_stride;
      arguments.aligned ? clear_row<uint4>(address, arguments.row_bytes)
                        : clear_row<unsigned short>(address, arguments.row_bytes);
    }
    __syncthreads();
  }
}

}  // namespace gdpa::portable
