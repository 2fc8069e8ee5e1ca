// One order for the additions to fp32 sums of dQ, in deterministic mode: each tile of queries has a number in global
// memory, that of the tile of keys whose turn it is. Who adds waits for its own number, and passes the turn on when the
// copy engine has added.
//
// So a CTA follows the one that has the tile of keys before by a tile of queries or two, and waits for it until it
// does. It waits less where it begins as much later: the tiles of a head do not follow each other in the table. Those
// of a window of batch entries lie in rows, first the first tile of each head, then the second of each.
//
// Nobody waits for ever: CTAs take places in rising order, and the tiles of a head lie in rising order, so that who
// holds the lowest one waits for none.
#pragma once

#include "common/memory.cuh"
#include "hopper/arguments.cuh"
#include "hopper/tensor_map.cuh"

namespace gdpa::hopper {

/// The number of a head's tile of queries; `place` is that of the tile among those of a head.
__device__ inline unsigned* turn_of(const BackwardArguments& arguments, int head, int place) {
  return arguments.turns + int64_t{head} * arguments.turns_of_head + place;
}

/// A turn that is asked for, and not passed on yet; in shared memory, since its owner has no register for it. By one
/// thread.
struct HeldTurn {
  unsigned* volatile number;  ///< null: there is none
  volatile unsigned next;

  __device__ void ask(unsigned* of_tile, int key_tile) {
    number = of_tile;
    next = static_cast<unsigned>(key_tile) + 1;
  }

  /// Copies that start behind it follow those of who had the turn before.
  __device__ bool has_come(const BackwardArguments& arguments) const {
    const bool has = load_acquired(number) + 1 == next || load_acquired(arguments.offsets_fall) != 0;
    order_copies_behind_loads();
    return has;
  }

  /// Behind the end of the copies.
  __device__ void pass_on() {
    if (number == nullptr) return;
    store_released(number, next);
    number = nullptr;
  }
};

/// Offsets that fall, which they must not, may have no place for a tile for whose turn another would wait. By all CTAs.
__device__ inline void look_for_offsets_that_fall(const BackwardArguments& arguments) {
  const Params& params = arguments.common.params;
  const auto falls = [](const Sequences& side, int64_t b) {
    return side.cumulative != nullptr && side.begin(b + 1) < side.begin(b);
  };
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t b = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; b < params.batch; b += threads) {
    if (falls(params.queries, b) || falls(params.keys, b)) *arguments.offsets_fall = 1;
  }
}

}  // namespace gdpa::hopper
