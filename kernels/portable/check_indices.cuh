// Debug mode: evaluates the indices of the function at every score inside the mask, and the indices of the mask at
// every score, and prints the first index that is outside of its axis. The kernels that follow clamp indices in any
// case.
//
// One CTA looks at all scores in order, so that it prints the first wrong index. The kernel is slow.
//
// Launch: grid 1.
#pragma once

#include "common/work.cuh"
#include "portable/arguments.cuh"

namespace gdpa::portable {

/// The indices of a mask without indices.
struct NoIndices {
  __device__ NoIndices(const Params&, const SequencePair&) {}
  __device__ static bool are_wrong(int, int, bool) { return false; }
};

template <class Config>
using check_indices_cta = CtaShape<512>;

/// Returns whether an index of the sequences was printed. By the CTA.
template <class Config>
__device__ bool check_pair(const Params& params, const SequencePair& pair) {
  using Mask = typename Config::Mask;
  constexpr int threads = check_indices_cta<Config>::threads;
  __shared__ int first_thread;
  const typename Config::FunctionIndices of_function(params, pair);
  const typename Config::MaskIndices of_mask(params, pair);
  const Mask mask = Mask::of(params, pair);
  const auto are_wrong = [&](int query, int key, bool prints) {
    return of_mask.are_wrong(query, key, prints) ||
           (mask.holds(query, key) && of_function.are_wrong(query, key, prints));
  };
  const auto thread = static_cast<int>(threadIdx.x);
  for (int query = 0; query < pair.length_q; ++query) {
    for (int first = 0; first < pair.length_k; first += threads) {
      const int key = first + thread;
      const bool is_wrong = key < pair.length_k && are_wrong(query, key, false);
      if (thread == 0) first_thread = threads;
      __syncthreads();
      if (is_wrong) atomicMin(&first_thread, thread);
      __syncthreads();
      const int found = first_thread;
      __syncthreads();
      if (thread == found) are_wrong(query, key, true);
      if (found < threads) return true;
    }
  }
  return false;
}

template <class Config>
__device__ void check_indices(const CommonArguments& arguments) {
  const Params& params = arguments.params;
  for (int64_t b = 0; b < params.batch; ++b) {
    for (int head = 0; head < params.heads_q; ++head) {
      const SequencePair pair = pair_in_batch(params, b, head, queries_of<typename Config::Layout>(arguments, b).count,
                                              keys_of<typename Config::Layout>(arguments, b).count);
      if (check_pair<Config>(params, pair)) return;
    }
  }
}

}  // namespace gdpa::portable
