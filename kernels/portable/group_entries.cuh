// The lists of KeySequences (common/arguments.cuh): the batch entries of each sequence of keys, for a call with a batch
// map. The entries are sorted by sequence and then by entry, so that sums over a list have one order. Launches, which
// the arguments distinguish:
//
//     1. Sort blocks of consecutive entries. A warp counts the entries of the block that come before an entry in the
//        order: this is its place. If all entries are one block, this also finds the first entry of each sequence.
//     2. Merge pairs of sorted runs, until one run is left. The place of an entry in the merged run is its place in its
//        own run, and the number of entries of the other run before it, which a search finds.
//     3. Find the first entry of each sequence, by a search.
//
// Launch: grid any number of CTAs, best numbers / group_entries_numbers (1.) or numbers / the threads of a CTA.
#pragma once

#include "common/lanes.cuh"
#include "common/sequence.cuh"
#include "portable/arguments.cuh"

namespace gdpa::portable {

template <class Config>
using group_entries_cta = CtaShape<256>;

/// Sorts blocks. Number n stands for batch entry n, or if there is one block for the first entry of sequence n - batch.
template <class Config>
__device__ void sort_blocks(const GroupEntriesArguments& arguments) {
  constexpr int threads = group_entries_cta<Config>::threads, warps = threads / 32;
  constexpr int numbers = group_entries_numbers / warps;  // of a warp
  constexpr int staged = 1024;
  static_assert(group_entries_block % group_entries_numbers == 0, "the numbers of a CTA are in one block");
  __shared__ int sequences[staged];  // of consecutive batch entries
  const int lane = lane_index();
  const int64_t batch = arguments.batch;
  const int64_t all = batch <= group_entries_block ? batch + arguments.keys.sequences + 1 : batch;
  for (int64_t of_cta = int64_t{blockIdx.x} * group_entries_numbers; of_cta < all;
       of_cta += int64_t{gridDim.x} * group_entries_numbers) {
    const int64_t block = batch <= group_entries_block ? 0 : of_cta / group_entries_block * group_entries_block;
    const int64_t block_end = clamp(block + group_entries_block, 0, batch);
    const int64_t first = of_cta + threadIdx.x / 32 * numbers;
    int sequence[numbers], before[numbers] = {};
#pragma unroll
    for (int i = 0; i < numbers; ++i) {
      sequence[i] = static_cast<int>(first + i < batch ? arguments.keys.sequence(first + i) : first + i - batch);
    }
    for (int64_t begin = block; begin < block_end; begin += staged) {
      const auto count = static_cast<int>(clamp(block_end - begin, 0, staged));
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
        arguments.entries[block + place] = static_cast<int>(first + i);
      } else {
        arguments.first_entry[first + i - batch] = place;
      }
    }
  }
}

/// Returns how many entries of the sorted run [begin, end) belong to a sequence with a smaller number than `sequence`.
/// With counts_equal, the entries of `sequence` itself count too.
__device__ inline int64_t count_before(const GroupEntriesArguments& arguments, const int* entries, int64_t begin,
                                       int64_t end, int64_t sequence, bool counts_equal) {
  const int64_t first = begin;
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2, of_middle = arguments.keys.sequence(entries[middle]);
    if (of_middle < sequence || (counts_equal && of_middle == sequence)) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin - first;
}

/// Merges each two runs of `run` entries. The entries of the first run are before those of the second in the batch.
template <class Config>
__device__ void merge_runs(const GroupEntriesArguments& arguments) {
  const int64_t run = arguments.run, batch = arguments.batch,
                step = int64_t{gridDim.x} * group_entries_cta<Config>::threads;
  for (int64_t at = int64_t{blockIdx.x} * group_entries_cta<Config>::threads + threadIdx.x; at < batch; at += step) {
    const int64_t first = at / (2 * run) * (2 * run), middle = clamp(first + run, 0, batch);
    const int64_t end = clamp(middle + run, 0, batch);
    const bool is_in_first = at < middle;
    const int entry = arguments.runs[at];
    const int64_t others = count_before(arguments, arguments.runs, is_in_first ? middle : first,
                                        is_in_first ? end : middle, arguments.keys.sequence(entry), !is_in_first);
    arguments.entries[first + (is_in_first ? at - first : at - middle) + others] = entry;
  }
}

template <class Config>
__device__ void find_first_entries(const GroupEntriesArguments& arguments) {
  const int64_t step = int64_t{gridDim.x} * group_entries_cta<Config>::threads;
  for (int64_t sequence = int64_t{blockIdx.x} * group_entries_cta<Config>::threads + threadIdx.x;
       sequence <= arguments.keys.sequences; sequence += step) {
    arguments.first_entry[sequence] =
        static_cast<int>(count_before(arguments, arguments.entries, 0, arguments.batch, sequence, false));
  }
}

template <class Config>
__device__ void group_entries(const GroupEntriesArguments& arguments) {
  if (arguments.run == 0) {
    sort_blocks<Config>(arguments);
  } else if (arguments.run < arguments.batch) {
    merge_runs<Config>(arguments);
  } else {
    find_first_entries<Config>(arguments);
  }
}

}  // namespace gdpa::portable
