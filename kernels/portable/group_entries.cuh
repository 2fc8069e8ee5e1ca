// The lists of KeySequences (common/arguments.cuh): the batch entries of each sequence of keys, for a call with a batch
// map. The place of a batch entry is the number of entries before it in the order by sequence and then by entry, so
// that sums over a list have one order. A warp counts these entries: a batch is too small for a sort in several
// kernels.
//
// Launch: grid any number of CTAs, best (entries + sequences + 1) / group_entries_numbers; block group_entries_threads;
//         no dynamic shared memory.
#pragma once

#include "common/lanes.cuh"
#include "common/sequence.cuh"
#include "portable/arguments.cuh"

namespace gdpa::portable {

template <class Config>
constexpr int group_entries_threads = 256;
template <class Config>
constexpr int group_entries_shared_bytes = 0;

template <class Config>
__device__ void group_entries(const GroupEntriesArguments& arguments) {
  constexpr int threads = group_entries_threads<Config>, warps = threads / 32;
  constexpr int numbers = group_entries_numbers / warps;  // of a warp
  constexpr int staged = 1024;
  __shared__ int sequences[staged];  // of consecutive batch entries
  const int lane = lane_index();
  const int64_t batch = arguments.batch, all = batch + arguments.keys.sequences + 1;
  for (int64_t of_cta = int64_t{blockIdx.x} * group_entries_numbers; of_cta < all;
       of_cta += int64_t{gridDim.x} * group_entries_numbers) {
    // Number n stands for batch entry n, or for the first entry of sequence n - batch.
    const int64_t first = of_cta + threadIdx.x / 32 * numbers;
    int sequence[numbers], before[numbers] = {};
#pragma unroll
    for (int i = 0; i < numbers; ++i) {
      sequence[i] = static_cast<int>(first + i < batch ? arguments.keys.sequence(first + i) : first + i - batch);
    }
    for (int64_t begin = 0; begin < batch; begin += staged) {
      const auto count = static_cast<int>(clamp(batch - begin, 0, staged));
      __syncthreads();
      for (int at = static_cast<int>(threadIdx.x); at < count; at += threads) {
        sequences[at] = static_cast<int>(arguments.keys.sequence(begin + at));
      }
      __syncthreads();
      for (int at = lane; at < count; at += 32) {
#pragma unroll
        for (int i = 0; i < numbers; ++i) {
          const bool is_earlier = first + i < batch && begin + at < first + i;
          before[i] += sequences[at] < sequence[i] || (is_earlier && sequences[at] == sequence[i]) ? 1 : 0;
        }
      }
      __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < numbers; ++i) {
      const int place = sum_up_to_lane(before[i]);
      if (lane != 31 || first + i >= all) continue;
      if (first + i < batch) {
        arguments.entries[place] = static_cast<int>(first + i);
      } else {
        arguments.first_entry[first + i - batch] = place;
      }
    }
  }
}

}  // namespace gdpa::portable
