// Whether two sequences of keys have a row in common, if each sequence has a begin and an end. Backward has different
// kernels for such keys (RowsLayout). Each row has a bit, which its first sequence sets.
//
// Launch: grid any number of CTAs, best sequences / find_overlap_sequences. The bits and the result are
//         cleared before.
#pragma once

#include "common/lanes.cuh"
#include "common/sequence.cuh"
#include "portable/arguments.cuh"

namespace gdpa::portable {

template <class Config>
using find_overlap_cta = CtaShape<find_overlap_sequences * 32>;

template <class Config>
__device__ void find_overlap(const FindOverlapArguments& arguments) {
  for (int64_t s = int64_t{blockIdx.x} * find_overlap_sequences + threadIdx.x / 32; s < arguments.sequences;
       s += int64_t{gridDim.x} * find_overlap_sequences) {
    const int64_t begin = clamp(arguments.side.begin(s), 0, arguments.rows);
    const int64_t end = clamp(arguments.side.end(s), begin, arguments.rows);
    for (int64_t word = begin / 32 + lane_index(); word * 32 < end; word += 32) {
      const auto first = static_cast<unsigned>(clamp(begin - word * 32, 0, 31));
      const auto count = static_cast<unsigned>(clamp(end - word * 32, 0, 32)) - first;
      const unsigned bits = (0xffffffffu >> (32 - count)) << first;
      if ((atomicOr(arguments.bits + word, bits) & bits) != 0) *arguments.overlap = 1;
    }
  }
}

}  // namespace gdpa::portable
