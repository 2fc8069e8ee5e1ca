// Who adds to fp32 sums of dQ when. Tiles of keys add in falling order: the last one that a tile of queries meets
// begins the sums, and the first one ends them (GradQuery), so that nothing is cleared before nor rounded behind. All
// others wait until they are begun, and who ends them for all others. In deterministic mode each waits for all before
// it.
//
// For that each tile of queries has a number in global memory: less the index of the tile of keys which would be next
// if they added in order, and before_the_first until the sums are begun. Who has added adds to it.
//
// So a CTA follows the one that has the tile of keys behind by a tile of queries or two, and waits for it until it
// does. It waits less where it begins as much later: the tiles of a head do not follow each other in the table
// (windows.cuh). Under a mask that leaves out later keys, or a window, a tile of keys meets the queries that it has in
// common with the one behind a step or two after that one: hence the falling order.
//
// Nobody waits for ever: CTAs take places in rising order, and the tiles of a head lie in the order in which they add,
// so that who holds the lowest place waits for none.
#pragma once

#include "common/memory.cuh"
#include "hopper/arguments.cuh"
#include "hopper/barrier.cuh"
#include "hopper/tensor_map.cuh"

namespace gdpa::hopper {

/// What the numbers are.
struct Turns {
  static constexpr int before_the_first = -(1 << 30);
  static constexpr int begun = before_the_first / 2;  ///< more than before, and less than any index has

  /// What has to be reached before a tile of keys may add.
  template <class Config>
  static __device__ int awaited(GradQuery is, int key_tile) {
    if (is == GradQuery::begins_sums) return 2 * before_the_first;  // less than any
    return Config::ordered || is == GradQuery::ends_sums ? -key_tile : begun;
  }
  static __device__ int passed_on(GradQuery is) { return is == GradQuery::begins_sums ? 1 - before_the_first : 1; }
};

/// The number of a head's tile of queries; `place` is that of the tile among those of a head.
__device__ inline int* turn_of(const BackwardArguments& arguments, int head, int place) {
  return arguments.turns + int64_t{head} * arguments.turns_of_head + place;
}

/// Whether the number is as high. Copies that start behind it follow those of who made it so.
__device__ inline bool has_come(const BackwardArguments& arguments, const int* number, int awaited) {
  const bool has = load_acquired(number) >= awaited || load_acquired(arguments.offsets_fall) != 0;
  order_copies_behind_loads();
  return has;
}

/// A turn that is asked for, and not passed on yet.
struct HeldTurn {
  int* volatile number;   ///< in global memory; null: it needs none
  volatile GradQuery is;  ///< what becomes of dQ
};

/// Those of a CTA, in shared memory; known by the number of the step.
struct HeldTurns {
  static constexpr int most = 4;
  static constexpr int barriers_at = most * static_cast<int>(sizeof(HeldTurn));
  static constexpr int bytes = barriers_at + 2 * Barriers<most>::bytes;

  HeldTurn* turns;
  Barriers<most> come;  ///< the keeper says that they have
  Barriers<most> over;  ///< who adds says that they are

  __device__ static HeldTurns at(unsigned char* memory) {
    const unsigned barriers = shared_address(memory) + barriers_at;
    return {reinterpret_cast<HeldTurn*>(memory), {barriers}, {barriers + Barriers<most>::bytes}};
  }

  __device__ HeldTurn& operator[](int number) const { return turns[index_in<most>(number)]; }
  __device__ void initialise() const {
    come.initialise(1);
    over.initialise(1);
  }
  __device__ __forceinline__ void end(int number) const { over[index_in<most>(number)].arrive(); }
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
