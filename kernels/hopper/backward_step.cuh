// Backward: the description of a step, and its reads by the consumers.
#pragma once

#include "common/lanes.cuh"
#include "hopper/arguments.cuh"
#include "pipeline/barrier.cuh"
#include "pipeline/warpgroup.cuh"

namespace gdpa::hopper {

/// The description of a step, which is one query tile of one key tile, for the consumers. A step that does not exist
/// ends the loop. The producer thread writes it, so that no look-up is between one product and the next.
struct Step {
  enum : int {
    exists = 1,
    begins = 2,              ///< the first step of a key tile
    ends = 4,                ///< the last step of a key tile
    only = 8,                ///< the only step of a key tile; or no step
    full = 16,               ///< no score is masked
    accumulated = 32,        ///< dQ goes to the fp32 accumulators
    loads_accumulator = 64,  ///< the accumulators are loaded, and dQ is stored with them
    loads_addend = 128,      ///< dO is loaded, and dQ begins with it
    odd_phase = 256,         ///< the parity of the barrier of either load
    swizzle = 512,           ///< from this bit on: accumulator_swizzle of the first query, modulo 4
    // With a batch map, where a key tile has an item in the queue for each of its entries:
    begins_item = 2048,  ///< the first step of an item
    ends_item = 4096     ///< the last step of an item
  };
  int flags;
  /// Of the key tile. With a batch map: the number of the key tile modulo `key_tiles`, and the number of the item
  /// times `key_tiles`. Both numbers give K and V the same stages and phases.
  int number;
  static constexpr int key_tiles = 4;
  int position;  ///< in the list of its query tiles
  int head;

  __device__ __forceinline__ bool is(int flag) const { return (flags & flag) != 0; }
};

/// Waits for Q of a step. Returns the step to lane 0, which also arrives for its warp, as racecheck requires.
template <class Shared>
__device__ __forceinline__ Step wait_for_step(const Shared& shared, int number) {
  shared.query_pipeline().consumer_wait(number);
  Step step{};
  if (lane_index() == 0) step = shared.step(number);
  return step;
}

/// The step of lane 0, without the members that are read by read_of_step.
__device__ __forceinline__ Step broadcast(const Step& step) {
  return {broadcast_lane_0(step.flags), broadcast_lane_0(step.number), 0, 0};
}

/// A member of a step. Lane 0 reads it, as in wait_for_step.
template <class Shared>
__device__ __forceinline__ int read_of_step(const Shared& shared, int number, int Step::*member) {
  int value = 0;
  if (lane_index() == 0) value = shared.step(number).*member;
  return broadcast_lane_0(value);
}

}  // namespace gdpa::hopper
