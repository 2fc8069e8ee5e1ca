// A circular queue of items in shared memory, from the tile scheduler to the warps that process the items.
#pragma once

#include "pipeline/barrier.cuh"

namespace gdpa::pipeline {

/// Items are numbered within the CTA. Item n uses slot n % slots.
template <class Item, int slots_>
struct Queue {
  static constexpr int slots = slots_;
  static constexpr int barriers_at = slots * static_cast<int>(sizeof(Item));
  static constexpr int bytes = barriers_at + 2 * Barriers<slots>::bytes;

  Item* items;
  Barriers<slots> full;
  Barriers<slots> empty;

  __device__ static Queue at(unsigned char* memory) {
    const unsigned barriers = shared_address(memory) + barriers_at;
    return {reinterpret_cast<Item*>(memory), {barriers}, {barriers + Barriers<slots>::bytes}};
  }

  __device__ Item& operator[](int number) const { return items[stage_of<slots>(number)]; }
  __device__ void producer_acquire(int number) const { pipeline::producer_acquire(empty, number); }
  /// Called by each thread that has written a part of the item.
  __device__ void producer_commit(int number) const { full[stage_of<slots>(number)].arrive(); }

  /// Waits for the item and returns it.
  __device__ __forceinline__ const Item& consumer_wait(int number) const {
    pipeline::consumer_wait(full, number);
    return (*this)[number];
  }
  __device__ void consumer_release(int number) const { empty[stage_of<slots>(number)].arrive(); }
};

}  // namespace gdpa::pipeline
