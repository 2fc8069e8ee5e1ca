// Who adds to fp32 sums of dQ when: each tile of queries has a number in global memory, that counts the tiles of keys
// which have added to its sums. Who adds waits until so many have as have to, and counts itself when the copy engine has
// added.
//
// Where the first tile of keys begins the sums and the last one ends them (GradQuery), so that nothing is cleared before
// nor rounded behind, all others wait for the first, and the last one for all. In deterministic mode each waits for all
// before it.
//
// So a CTA follows the one that has the tile of keys before by a tile of queries or two, and waits for it until it
// does. It waits less where it begins as much later: the tiles of a head do not follow each other in the table
// (windows.cuh).
//
// Nobody waits for ever: CTAs take places in rising order, and the tiles of a head lie in rising order, so that who
// holds the lowest one waits for none.
#pragma once

#include "common/memory.cuh"
#include "hopper/arguments.cuh"
#include "hopper/tensor_map.cuh"

namespace gdpa::hopper {

template <class Config>
constexpr bool has_turns = Config::sums_begun || Config::ordered;

/// The number of a head's tile of queries; `place` is that of the tile among those of a head.
__device__ inline unsigned* turn_of(const BackwardArguments& arguments, int head, int place) {
  return arguments.turns + int64_t{head} * arguments.turns_of_head + place;
}

/// Whether so many have counted themselves. Copies that start behind it follow theirs.
__device__ inline bool has_come(const BackwardArguments& arguments, const unsigned* number, int turns_before) {
  const bool has =
      load_acquired(number) >= static_cast<unsigned>(turns_before) || load_acquired(arguments.offsets_fall) != 0;
  order_copies_behind_loads();
  return has;
}

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
