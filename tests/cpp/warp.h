// Warps on the host: contexts of one thread that switch wherever the lanes of a warp exchange something and wherever
// all warps of a CTA wait, so that device code without instructions of its own can be tested without a GPU. Include it
// before that code.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

#define __device__
#define __forceinline__ inline
using std::max;
using std::min;

namespace gdpa::warp {

struct Index {
  unsigned x = 0;
};

constexpr unsigned lanes = 32;

/// Switches to the next lane of the CTA that has not returned.
void yield();

/// std::barrier for lanes, which share one thread of the host.
class Barrier {
 public:
  explicit Barrier(unsigned expected) : expected_(expected) {}

  void arrive_and_wait() {
    const std::uint64_t phase = phase_;
    if (++arrived_ == expected_) {
      arrived_ = 0;
      ++phase_;
    }
    while (phase_ == phase) yield();
  }

 private:
  unsigned expected_;
  unsigned arrived_ = 0;
  std::uint64_t phase_ = 0;
};

struct Warp {
  std::array<std::uint64_t, lanes> exchanged{};
  Barrier all_lanes{lanes};
};

struct Lane {
  ucontext_t context{};
  std::vector<std::byte> stack = std::vector<std::byte>(std::size_t{64} << 10);
  bool has_returned = false;
};

struct Cta {
  explicit Cta(unsigned count) : all_threads(count * lanes), warps(count), threads(count * lanes) {}

  Barrier all_threads;
  std::deque<Warp> warps;
  std::deque<Lane> threads;
  ucontext_t host{};
  std::function<void(unsigned)> work;
};

inline Cta* own_cta = nullptr;

}  // namespace gdpa::warp

inline gdpa::warp::Index threadIdx, blockIdx, gridDim;

inline void __syncthreads() { gdpa::warp::own_cta->all_threads.arrive_and_wait(); }

namespace gdpa::warp {

inline Warp& own_warp() { return own_cta->warps[threadIdx.x / lanes]; }

/// Leaves `from` for the next thread that has not returned, or for the host where none is left.
inline void switch_from(ucontext_t& from) {
  Cta& cta = *own_cta;
  const auto count = static_cast<unsigned>(cta.threads.size());
  for (unsigned step = 1; step <= count; ++step) {
    const unsigned next = (threadIdx.x + step) % count;
    if (cta.threads[next].has_returned) continue;
    threadIdx.x = next;
    if (&cta.threads[next].context == &from)
      throw std::logic_error("warp.h: the last lane waits for lanes that returned");
    swapcontext(&from, &cta.threads[next].context);
    return;
  }
  swapcontext(&from, &cta.host);
}

inline void yield() { switch_from(own_cta->threads[threadIdx.x].context); }

inline void run_lane() {
  Lane& lane = own_cta->threads[threadIdx.x];
  own_cta->work(threadIdx.x);
  lane.has_returned = true;
  switch_from(lane.context);
}

}  // namespace gdpa::warp

/// What lane `source` gives.
template <class Number>
Number __shfl_sync(unsigned /*mask*/, Number value, int source) {
  static_assert(sizeof(Number) <= sizeof(std::uint64_t));
  using namespace gdpa::warp;
  Warp& warp = own_warp();
  std::memcpy(&warp.exchanged[threadIdx.x % lanes], &value, sizeof(value));
  warp.all_lanes.arrive_and_wait();
  Number result;
  std::memcpy(&result, &warp.exchanged[static_cast<unsigned>(source) % lanes], sizeof(result));
  warp.all_lanes.arrive_and_wait();
  return result;
}

template <class Number>
Number __shfl_up_sync(unsigned mask, Number value, unsigned distance) {
  const unsigned lane = threadIdx.x % gdpa::warp::lanes;
  return __shfl_sync(mask, value, static_cast<int>(lane < distance ? lane : lane - distance));
}

inline unsigned __ballot_sync(unsigned /*mask*/, bool holds) {
  using namespace gdpa::warp;
  Warp& warp = own_warp();
  warp.exchanged[threadIdx.x % lanes] = holds ? 1 : 0;
  warp.all_lanes.arrive_and_wait();
  unsigned result = 0;
  for (unsigned lane = 0; lane < lanes; ++lane) result |= static_cast<unsigned>(warp.exchanged[lane]) << lane;
  warp.all_lanes.arrive_and_wait();
  return result;
}

inline unsigned atomicAdd(unsigned* number, unsigned value) { return std::exchange(*number, *number + value); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }

namespace gdpa::warp {

/// Runs `work` as the `warps` warps of CTA `cta` of `ctas`, once for each of their threads.
inline void run(unsigned cta, unsigned ctas, unsigned warps, std::function<void(unsigned)> work) {
  Cta own(warps);
  own.work = std::move(work);
  own_cta = &own;
  blockIdx.x = cta;
  gridDim.x = ctas;
  for (Lane& lane : own.threads) {
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack.data();
    lane.context.uc_stack.ss_size = lane.stack.size();
    makecontext(&lane.context, run_lane, 0);
  }
  threadIdx.x = 0;
  swapcontext(&own.host, &own.threads[0].context);
}

}  // namespace gdpa::warp
