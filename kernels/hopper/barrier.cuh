// How the warps of a CTA wait for each other and for copies: barriers in shared memory that count arrivals and bytes
// (mbarrier), and the numbered barriers of the CTA. One instruction each.
#pragma once

#include "common/memory.cuh"
#include "common/random_delay.cuh"

namespace gdpa::hopper {

/// A barrier in shared memory, by its address. A phase is over when all arrivals, and all bytes that were announced,
/// have come.
struct Barrier {
  static constexpr int bytes = 8;
  unsigned address;

  __device__ void initialise(int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals));
  }

  /// Before its memory becomes another barrier; nobody may be at it.
  __device__ void invalidate() const { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(address) : "memory"); }

  __device__ void arrive() const {
    random_delay();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
  }

  /// One arrival, and the announcement of bytes that copies will bring.
  __device__ void arrive_and_expect(int count) const {
    random_delay();
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(count) : "memory");
  }

  /// Waits until the phase of this parity is over. A fresh barrier counts as having ended a phase of parity 1.
  __device__ __forceinline__ void wait(unsigned parity) const {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\n"
        "bra again;\n"
        "over:\n"
        "}" ::"r"(address),
        "r"(parity)
        : "memory");
    random_delay();
  }

  /// Whether it is over, without waiting.
  __device__ __forceinline__ bool is_over(unsigned parity) const {
    int is;
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.b32 %0, 1, 0, done;\n"
        "}"
        : "=r"(is)
        : "r"(address), "r"(parity)
        : "memory");
    random_delay();
    return is != 0;
  }
};

/// Barriers of a ring of buffers, one behind the other.
template <int buffers_>
struct Barriers {
  static constexpr int buffers = buffers_;
  static constexpr int bytes = buffers * Barrier::bytes;
  unsigned address;

  __device__ __forceinline__ Barrier operator[](int index) const {
    return {address + static_cast<unsigned>(index * Barrier::bytes)};
  }
  __device__ void initialise(int arrivals) const {
    for (int i = 0; i < buffers; ++i) (*this)[i].initialise(arrivals);
  }
  __device__ void invalidate() const {
    for (int i = 0; i < buffers; ++i) (*this)[i].invalidate();
  }
};

/// Makes initialised barriers visible to the copy engine; a barrier of the CTA follows.
__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// Buffers of a ring are used in turns: turn n uses buffer n % buffers, for the n / buffers-th time.
template <int buffers>
__device__ __forceinline__ int index_in(int turn) {
  return static_cast<int>(static_cast<unsigned>(turn) % buffers);
}

/// Waits until the barrier of a turn's buffer has ended the phase of this turn; of the turn one lap before with
/// `laps_before` 1, which is over at once in the first lap.
template <int buffers>
__device__ __forceinline__ void wait_for_turn(const Barriers<buffers>& barriers, int turn, unsigned laps_before = 0) {
  barriers[index_in<buffers>(turn)].wait((static_cast<unsigned>(turn) / buffers + laps_before) & 1u);
}

/// Whether it has, without waiting.
template <int buffers>
__device__ __forceinline__ bool is_over(const Barriers<buffers>& barriers, int turn) {
  return barriers[index_in<buffers>(turn)].is_over(static_cast<unsigned>(turn) / buffers & 1u);
}

/// A turn that is counted rather than divided out: its buffer, and the parity of its phase.
template <int buffers>
struct Turn {
  int buffer = 0;
  unsigned parity = 0;

  __device__ __forceinline__ Turn next() const {
    const bool wraps = buffer + 1 == buffers;
    return {wraps ? 0 : buffer + 1, parity ^ static_cast<unsigned>(wraps)};
  }
  /// `turns` turns before, fewer than there are buffers.
  __device__ __forceinline__ Turn before(int turns) const {
    const bool wraps = buffer < turns;
    return {wraps ? buffer - turns + buffers : buffer - turns, parity ^ static_cast<unsigned>(wraps)};
  }
};

template <int buffers>
__device__ __forceinline__ void wait_for_turn(const Barriers<buffers>& barriers, const Turn<buffers>& turn) {
  barriers[turn.buffer].wait(turn.parity);
}

/// A barrier by number, 1 to 15, of `threads` threads: those that wait, and those that only arrive.
__device__ inline void named_wait(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
  random_delay();
}
__device__ inline void named_arrive(int number, int threads) {
  random_delay();
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

}  // namespace gdpa::hopper
