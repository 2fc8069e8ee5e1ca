// A warp on the host: 32 threads that wait for each other wherever the lanes of a warp exchange something, so that
// device code without instructions of its own can be tested without a GPU. Include it before that code.
#pragma once

#include <algorithm>
#include <array>
#include <barrier>
#include <cstdint>
#include <cstring>
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
inline std::array<std::uint64_t, lanes> exchanged;
inline std::barrier<> all_lanes(lanes);

}  // namespace gdpa::warp

inline thread_local gdpa::warp::Index threadIdx, blockIdx, gridDim;

/// What lane `source` gives.
template <class Number>
Number __shfl_sync(unsigned /*mask*/, Number value, int source) {
  static_assert(sizeof(Number) <= sizeof(std::uint64_t));
  using namespace gdpa::warp;
  std::memcpy(&exchanged[threadIdx.x], &value, sizeof(value));
  all_lanes.arrive_and_wait();
  Number result;
  std::memcpy(&result, &exchanged[static_cast<unsigned>(source) % lanes], sizeof(result));
  all_lanes.arrive_and_wait();
  return result;
}

template <class Number>
Number __shfl_up_sync(unsigned mask, Number value, unsigned distance) {
  return __shfl_sync(mask, value, static_cast<int>(threadIdx.x < distance ? threadIdx.x : threadIdx.x - distance));
}

inline unsigned __ballot_sync(unsigned /*mask*/, bool holds) {
  using namespace gdpa::warp;
  exchanged[threadIdx.x] = holds ? 1 : 0;
  all_lanes.arrive_and_wait();
  unsigned result = 0;
  for (unsigned lane = 0; lane < lanes; ++lane) result |= static_cast<unsigned>(exchanged[lane]) << lane;
  all_lanes.arrive_and_wait();
  return result;
}

inline int __ffs(int bits) { return __builtin_ffs(bits); }

namespace gdpa::warp {

/// Runs `work` as the warp of CTA `cta` of `ctas`, once for each lane.
template <class Work>
void run(unsigned cta, unsigned ctas, Work work) {
  std::vector<std::thread> threads;
  for (unsigned lane = 0; lane < lanes; ++lane) {
    threads.emplace_back([=] {
      threadIdx.x = lane;
      blockIdx.x = cta;
      gridDim.x = ctas;
      work(lane);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace gdpa::warp
