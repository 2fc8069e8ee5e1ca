// Warps on the host: threads that wait for each other wherever the lanes of a warp exchange something, and where all
// warps of a CTA meet, so that device code without instructions of its own can be tested without a GPU. Include it
// before that code.
#pragma once

#include <algorithm>
#include <array>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <deque>
#include <thread>
#include <vector>

#define __device__
using std::max;
using std::min;

namespace gdpa::warp {

struct Index {
  unsigned x = 0;
};

constexpr unsigned lanes = 32;

struct Warp {
  std::array<std::uint64_t, lanes> exchanged{};
  std::barrier<> all_lanes{lanes};
};

inline thread_local Warp* own_warp = nullptr;
inline thread_local std::barrier<>* all_threads = nullptr;  ///< of the CTA

}  // namespace gdpa::warp

inline thread_local gdpa::warp::Index threadIdx, blockIdx, gridDim;

inline void __syncthreads() { gdpa::warp::all_threads->arrive_and_wait(); }

/// What lane `source` gives.
template <class Number>
Number __shfl_sync(unsigned /*mask*/, Number value, int source) {
  static_assert(sizeof(Number) <= sizeof(std::uint64_t));
  using namespace gdpa::warp;
  std::memcpy(&own_warp->exchanged[threadIdx.x % lanes], &value, sizeof(value));
  own_warp->all_lanes.arrive_and_wait();
  Number result;
  std::memcpy(&result, &own_warp->exchanged[static_cast<unsigned>(source) % lanes], sizeof(result));
  own_warp->all_lanes.arrive_and_wait();
  return result;
}

template <class Number>
Number __shfl_up_sync(unsigned mask, Number value, unsigned distance) {
  const unsigned lane = threadIdx.x % gdpa::warp::lanes;
  return __shfl_sync(mask, value, static_cast<int>(lane < distance ? lane : lane - distance));
}

inline unsigned __ballot_sync(unsigned /*mask*/, bool holds) {
  using namespace gdpa::warp;
  own_warp->exchanged[threadIdx.x % lanes] = holds ? 1 : 0;
  own_warp->all_lanes.arrive_and_wait();
  unsigned result = 0;
  for (unsigned lane = 0; lane < lanes; ++lane) result |= static_cast<unsigned>(own_warp->exchanged[lane]) << lane;
  own_warp->all_lanes.arrive_and_wait();
  return result;
}

inline int __ffs(int bits) { return __builtin_ffs(bits); }

namespace gdpa::warp {

/// Runs `work` as the `warps` warps of CTA `cta` of `ctas`, once for each of their threads.
template <class Work>
void run(unsigned cta, unsigned ctas, unsigned warps, Work work) {
  std::deque<Warp> all_warps(warps);
  std::barrier<> all(lanes * warps);
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < lanes * warps; ++thread) {
    threads.emplace_back([=, &work, &all_warps, &all] {
      own_warp = &all_warps[thread / lanes];
      all_threads = &all;
      threadIdx.x = thread;
      blockIdx.x = cta;
      gridDim.x = ctas;
      work(thread);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace gdpa::warp
