// One order for the additions to fp32 sums of dQ, in deterministic mode: each half of the columns of a tile of queries
// has a number in global memory, that of the tile of keys whose turn it is. Who adds waits for its own number, and
// passes the turn on when the copy engine has added.
//
// Nobody waits for ever: CTAs take tiles of keys in rising order, so that who holds the lowest one waits for none.
#pragma once

#include "common/memory.cuh"
#include "hopper/arguments.cuh"
#include "hopper/tensor_map.cuh"

namespace gdpa::hopper {

/// The number of a half of the columns of a head's tile of queries; `place` is that of the tile among those of a head.
__device__ inline unsigned* turn_of(const BackwardArguments& arguments, int head, int place, int half) {
  return arguments.turns + (static_cast<int64_t>(head) * arguments.turns_of_head + place) * 2 + half;
}

/// A turn that is taken and not passed on yet; in shared memory, where it takes no registers. By one thread.
struct HeldTurn {
  unsigned* number;  ///< null: there is none
  unsigned next;

  __device__ void take(unsigned* of_tile, int key_tile) {
    const auto mine = static_cast<unsigned>(key_tile);
    while (load_acquired(of_tile) != mine) {
    }
    order_copies_behind_loads();
    number = of_tile;
    next = mine + 1;
  }

  /// Behind the end of the copies.
  __device__ void pass_on() {
    if (number == nullptr) return;
    store_released(number, next);
    number = nullptr;
  }
};

}  // namespace gdpa::hopper
