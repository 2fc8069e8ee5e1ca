// A circular queue of items in shared memory, from the tile scheduler to the warps that process the items.
#pragma once

#include "pipeline/barrier.cuh"

namespace gdpa::pipeline {

/// Items are numbered within the CTA. Item n uses slot n % slots.
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

}  // namespace gdpa::pipeline
