// Backward: the layout of shared memory that only this kernel has (key_major.cuh), and the description of a step with
// its reads by the consumers.
#pragma once

#include "common/lanes.cuh"
#include "hopper/arguments.cuh"
#include "hopper/dq_semaphore.cuh"
#include "hopper/grad_query_accumulators.cuh"
#include "hopper/key_major.cuh"
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

/// The bytes in which a consumer stages dQ, dK and dV.
template <class Config>
constexpr int staging_bytes = warpgroup_rows* grad_query_columns(Config::tile_queries, Config::head_dim) *
                              static_cast<int>(sizeof(float));

/// K has two stages, because dQ of the last step needs K when S of the next key tile has begun.
template <class Config>
struct BackwardStorage : KeyMajorStorage<Config, 2, 2 * staging_bytes<Config>> {
  using Base = KeyMajorStorage<Config, 2, 2 * staging_bytes<Config>>;
  using Base::at, Base::memory, Base::rows, Base::warpgroups;
  using typename Base::KeysTile;
  using Element = typename Config::Element;
  static constexpr int key_warpgroups = Config::tile_keys / rows;          ///< with keys; another one computes dQ only
  static constexpr int queue_readers = Config::has_dq_semaphores ? 3 : 2;  ///< producer, store and semaphore threads
  static constexpr bool adds_grad_output = Config::computes_grad_query && Config::Epilogue::has_addend;  ///< to dQ
  static_assert(Config::tile_keys == backward_tile_keys || Config::tile_keys == least_backward_tile_keys,
                "64 keys each, or 64 keys of one consumer");
  static_assert(Config::tile_queries == rows || (Config::tile_queries == warpgroups * rows &&
                                                 Config::head_dim <= box_columns && Config::head_dim_v <= box_columns),
                "registers for the scores of 128 queries");
  static constexpr bool splits_queries = Config::tile_queries > rows;  ///< between the consumers, for dQ

  static constexpr bool has_batch_map = Config::Layout::has_batch_map;
  static constexpr int begins_item = has_batch_map ? Step::begins_item : Step::begins;
  static constexpr int ends_item = has_batch_map ? Step::ends_item : Step::ends;

  /// The number of the item in the queue.
  __device__ __forceinline__ static int item_of(const Step& step) {
    // Otherwise both numbers stay in registers, and an exact function spills.
    return has_batch_map ? static_cast<int>(launder(step.number)) / Step::key_tiles : step.number;
  }

  static constexpr int grad_query_columns = hopper::grad_query_columns(Config::tile_queries, Config::head_dim);
  static_assert(KeysTile::columns == (splits_queries ? 1 : warpgroups) * grad_query_columns, "what is not split");
  using GradQueryTile = NarrowTile<grad_query_columns>;
  static constexpr int grad_query_row_bytes = grad_query_columns * static_cast<int>(sizeof(float));

  /// dK and dV leave in rounds of as many columns as a staging buffer has; with broadcast K/V, from registers.
  static constexpr int columns_of_round =
      splits_queries ? box_columns : staging_bytes<Config> / (rows * Element::bytes);
  using RoundTile = SwizzledTile<rows, columns_of_round>;
  static constexpr int rounds_of(int columns) {
    return Config::keys_shared ? 0 : (columns + columns_of_round - 1) / columns_of_round;
  }
  static constexpr int key_rounds = Config::computes_grad_key ? rounds_of(Config::head_dim) : 0;
  static constexpr int value_rounds = Config::computes_grad_value ? rounds_of(Config::head_dim_v) : 0;

  /// The number of times that the staging buffer of a consumer was filled, after dQ of some steps, and dK and dV of
  /// some key tiles.
  __device__ static int times_staged(int warpgroup, int steps, int tiles) {
    const int rounds = warpgroup < key_warpgroups ? key_rounds + value_rounds : 0;
    return (Config::computes_grad_query ? steps : 0) + rounds * tiles;
  }

  static constexpr int staging_barriers_at = Base::end;
  static constexpr int accumulator_barriers_at = staging_barriers_at + warpgroups * Pipeline<1>::bytes;
  static constexpr int semaphore_requests_at = accumulator_barriers_at + warpgroups * Pipeline<1>::bytes;
  static constexpr int steps_at = semaphore_requests_at + SemaphoreRequests::bytes;
  static constexpr int accumulator_phase_at = steps_at + Config::stages * static_cast<int>(sizeof(Step));
  static constexpr int shared_bytes = accumulator_phase_at + static_cast<int>(sizeof(unsigned));
  static_assert(shared_bytes <= 227 * 1024, "more than a CTA can have");

  /// The staging buffer of a consumer: dQ of its columns, dK and dV of its rows, until the TMA store has read them.
  __device__ unsigned staging(int warpgroup) const { return at(Base::own_at + warpgroup * staging_bytes<Config>); }
  __device__ Pipeline<1> staging_pipeline(int warpgroup) const {
    return {at(staging_barriers_at + warpgroup * Pipeline<1>::bytes)};
  }
  /// The barriers of loads into a staging buffer: of accumulators of dQ, or of dO.
  __device__ Pipeline<1> accumulator_pipeline(int warpgroup) const {
    return {at(accumulator_barriers_at + warpgroup * Pipeline<1>::bytes)};
  }

  __device__ SemaphoreRequests semaphore_requests() const {
    return SemaphoreRequests::at(memory + semaphore_requests_at);
  }

  /// The parity of the loads of accumulators. The store thread keeps it here, because it has no register left.
  __device__ volatile unsigned& accumulator_phase() const {
    return *reinterpret_cast<volatile unsigned*>(memory + accumulator_phase_at);
  }

  /// The description of a step. It lives as long as the stage of Q.
  __device__ Step& step(int number) const {
    return reinterpret_cast<Step*>(memory + steps_at)[stage_of<Config::stages>(number)];
  }

  __device__ void initialise() const {
    this->query_pipeline().initialise(1, warpgroups * warpgroup_threads / 32);
    this->grad_output_pipeline().initialise(1, key_warpgroups);
    this->key_pipeline().initialise(1, warpgroups);
    this->value_pipeline().initialise(1, key_warpgroups);
    this->ds_pipeline().initialise(key_warpgroups * warpgroup_threads / 32, warpgroups);
    for (int warpgroup = 0; warpgroup < warpgroups; ++warpgroup) {
      staging_pipeline(warpgroup).initialise(warpgroup_threads / 32, 1);
      accumulator_pipeline(warpgroup).initialise(1, warpgroup_threads);
    }
    semaphore_requests().initialise(1, 1);
    accumulator_phase() = 0;
    this->next_key_tile_due().initialise(1);
    this->tiles().initialise(key_tile_words<typename Config::Mask>, warpgroups * warpgroup_threads + queue_readers);
    fence_barrier_init();
  }
};

template <class Config>
using backward_cta = BackwardStorage<Config>;

}  // namespace gdpa::hopper
