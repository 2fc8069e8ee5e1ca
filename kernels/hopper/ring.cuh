// A ring of items in shared memory, on their way from the warp that finds them to the warps that work on them.
#pragma once

#include "hopper/barrier.cuh"

namespace gdpa::hopper {

/// Items are known by their number within the CTA.
template <class Item, int slots_>
struct Ring {
  static constexpr int slots = slots_;
  static constexpr int barriers_at = slots * static_cast<int>(sizeof(Item));
  static constexpr int bytes = barriers_at + 2 * Barriers<slots>::bytes;

  Item* items;
  Barriers<slots> filled;
  Barriers<slots> free;

  __device__ static Ring at(unsigned char* memory) {
    const unsigned barriers = shared_address(memory) + barriers_at;
    return {reinterpret_cast<Item*>(memory), {barriers}, {barriers + Barriers<slots>::bytes}};
  }

  __device__ Item& operator[](int number) const { return items[index_in<slots>(number)]; }
  __device__ void wait_free(int number) const { wait_for_turn(free, number, 1); }
  /// By each thread that has written a part of it.
  __device__ void publish(int number) const { filled[index_in<slots>(number)].arrive(); }

  /// The item, once it is there.
  __device__ __forceinline__ const Item& wait(int number) const {
    wait_for_turn(filled, number);
    return (*this)[number];
  }
  __device__ void release(int number) const { free[index_in<slots>(number)].arrive(); }
};

}  // namespace gdpa::hopper
