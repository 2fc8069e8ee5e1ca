// Barriers: mbarriers in shared memory, which count arrivals of threads and bytes of TMA copies; the pipelines and the
// queues that they order, with the state that says which stage an iteration uses and in which phase; and the named
// barriers of the CTA.
#pragma once

#include "common/memory.cuh"
#include "common/random_delay.cuh"

namespace gdpa::pipeline {

/// An mbarrier, by its address in shared memory. A phase is complete when all its arrivals have happened and all bytes
/// that were announced have arrived.
struct Barrier {
  static constexpr int bytes = 8;
  unsigned address;

  __device__ void initialise(int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals));
  }

  __device__ void arrive() const {
    random_delay();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
  }

  /// Arrives once, and announces the bytes that TMA copies will bring in this phase.
  __device__ void arrive_and_expect(int count) const {
    random_delay();
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(count) : "memory");
  }

  /// Waits until the phase of this parity is complete. A new barrier counts as having completed a phase of parity 1.
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

  /// Whether the phase of this parity is complete; does not wait.
  __device__ __forceinline__ bool is_complete(unsigned parity) const {
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

/// Makes initialised barriers visible to the async proxy. A barrier of the CTA must follow.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// The stage that iteration n of a pipeline uses: n % stages, in phase n / stages.
template <int stages>
__device__ __forceinline__ int stage_of(int iteration) {
  return static_cast<int>(static_cast<unsigned>(iteration) % stages);
}

/// The stage and the parity of the phase of an iteration, advanced by one instead of divided out of its number.
template <int stages>
struct PipelineState {
  int stage = 0;
  unsigned parity = 0;

  __device__ __forceinline__ PipelineState next() const {
    const bool wraps = stage + 1 == stages;
    return {wraps ? 0 : stage + 1, parity ^ static_cast<unsigned>(wraps)};
  }
  /// The state `iterations` iterations before this one, which are fewer than the stages.
  __device__ __forceinline__ PipelineState before(int iterations) const {
    const bool wraps = stage < iterations;
    return {wraps ? stage - iterations + stages : stage - iterations, parity ^ static_cast<unsigned>(wraps)};
  }
};

/// The barriers of a pipeline: producers fill the stage of an iteration, and consumers release it.
template <int stages_>
struct Pipeline {
  static constexpr int stages = stages_;
  static constexpr int bytes = 2 * stages * Barrier::bytes;
  unsigned address;

  __device__ __forceinline__ Barrier full(int stage) const {
    return {address + static_cast<unsigned>(stage * Barrier::bytes)};
  }
  __device__ __forceinline__ Barrier empty(int stage) const { return full(stages + stage); }

  /// With the arrivals that fill a stage, and those that release it.
  __device__ void initialise(int to_fill, int to_release) const {
    for (int i = 0; i < stages; ++i) full(i).initialise(to_fill);
    for (int i = 0; i < stages; ++i) empty(i).initialise(to_release);
  }

  /// The barrier of the bytes, or of the threads, that fill the stage.
  __device__ __forceinline__ Barrier full_of(int iteration) const { return full(stage_of<stages>(iteration)); }
  __device__ __forceinline__ Barrier empty_of(int iteration) const { return empty(stage_of<stages>(iteration)); }
  __device__ __forceinline__ static unsigned parity_of(int iteration) {
    return static_cast<unsigned>(iteration) / stages & 1u;
  }

  /// Waits until all consumers have released the stage since the previous phase. Does not wait in the first phase.
  __device__ __forceinline__ void producer_acquire(int iteration) const {
    empty_of(iteration).wait(parity_of(iteration) ^ 1u);
  }
  /// Whether producer_acquire() would not wait.
  __device__ __forceinline__ bool is_released(int iteration) const {
    return empty_of(iteration).is_complete(parity_of(iteration) ^ 1u);
  }

  /// Waits until the stage has been filled.
  __device__ __forceinline__ void consumer_wait(int iteration) const { full_of(iteration).wait(parity_of(iteration)); }
  __device__ __forceinline__ void consumer_wait(const PipelineState<stages>& state) const {
    full(state.stage).wait(state.parity);
  }
  /// Whether consumer_wait() would not wait.
  __device__ __forceinline__ bool is_filled(int iteration) const {
    return full_of(iteration).is_complete(parity_of(iteration));
  }
  __device__ __forceinline__ void consumer_release(int iteration) const { empty_of(iteration).arrive(); }
  __device__ __forceinline__ void consumer_release(const PipelineState<stages>& state) const {
    empty(state.stage).arrive();
  }
};

/// A circular queue of items in shared memory, from the tile scheduler to the warps that process the items. Items are
/// numbered within the CTA. Item n uses slot n % slots.
template <class Item, int slots_>
struct Queue : Pipeline<slots_> {
  static constexpr int slots = slots_;
  static constexpr int barriers_at = slots * static_cast<int>(sizeof(Item));
  static constexpr int bytes = barriers_at + Pipeline<slots>::bytes;

  Item* items;

  __device__ static Queue at(unsigned char* memory) {
    return {{shared_address(memory) + barriers_at}, reinterpret_cast<Item*>(memory)};
  }

  __device__ Item& operator[](int number) const { return items[stage_of<slots>(number)]; }
  /// Called by each thread that has written a part of the item.
  __device__ void producer_commit(int number) const { this->full_of(number).arrive(); }

  /// Waits for the item and returns it.
  __device__ __forceinline__ const Item& consumer_wait(int number) const {
    Pipeline<slots>::consumer_wait(number);
    return (*this)[number];
  }
};

/// Named barrier 1 to 15. `threads` counts the threads that wait and the threads that only arrive.
__device__ inline void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
  random_delay();
}
__device__ inline void named_barrier_arrive(int barrier, int threads) {
  random_delay();
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace gdpa::pipeline
