// Locates the sequences of each batch entry, for sides whose sequences are in any order or have a batch map. Writes
// their begins and ends, within the operand, and the sums of the lengths of the entries before each entry, for the tile
// order (common/work.cuh). Other kernels then need no map and no search. Also locates the rows of O of each batch
// entry.
//
// Launch: grid 4, one CTA for each side.
#pragma once

#include "common/sequence.cuh"
#include "portable/arguments.cuh"

namespace gdpa::portable {

template <class Config>
using locate_sequences_cta = CtaShape<256>;

template <class Config>
__device__ void locate_sequences(const LocateSequencesArguments& arguments) {
  constexpr int threads = locate_sequences_cta<Config>::threads;
  const LocatedSide& side = arguments.sides[blockIdx.x];
  if (side.sums == nullptr) return;
  const auto thread = static_cast<int>(threadIdx.x);
  __shared__ int64_t sums[threads];
  if (thread == 0) side.sums[0] = 0;
  int64_t before = 0;  // of the entries of earlier rounds
  for (int64_t first = 0; first < side.entries; first += threads) {
    const int64_t b = first + thread;
    int64_t begin = 0, count = 0;
    if (b < side.entries) {
      begin = clamp(side.sequences.begin(b), 0, side.rows);
      count = clamp(clamp(side.sequences.end(b), begin, side.rows) - begin, 0, side.longest);
      if (side.places.data != nullptr) begin = clamp(side.places[b], 0, side.place_rows - count);
    }
    sums[thread] = count;
    __syncthreads();
    for (int step = 1; step < threads; step *= 2) {
      const int64_t other = thread >= step ? sums[thread - step] : 0;
      __syncthreads();
      sums[thread] += other;
      __syncthreads();
    }
    if (b < side.entries) {
      const int64_t sum = before + sums[thread];
      const int64_t last = clamp(sum, 0, side.most);
      const int64_t rows = last - clamp(sum - count, 0, side.most);  // below `count` only if the numbers are wrong
      side.begins[b] = begin;
      side.ends[b] = begin + rows;
      side.sums[b + 1] = last;
    }
    before += sums[threads - 1];
    __syncthreads();
  }
}

}  // namespace gdpa::portable
