// Backward: the roles of the threads, the layout of shared memory, and its barriers.
#pragma once

#include "hopper/backward_step.cuh"
#include "hopper/dq_semaphore.cuh"
#include "hopper/grad_query_accumulators.cuh"
#include "hopper/key_schedule.cuh"
#include "hopper/tile.cuh"
#include "pipeline/warpgroup.cuh"

namespace gdpa::hopper {

/// The roles of the threads, and the layout of shared memory.
template <class Config>
struct BackwardStorage {
  using Element = typename Config::Element;
  using Queue = KeyTileQueue<typename Config::Mask>;
  static constexpr int warpgroups = 2;                                    ///< consumers
  static constexpr int rows = warpgroup_rows;                             ///< keys of a warpgroup
  static constexpr int key_warpgroups = Config::tile_keys / rows;         ///< with keys; another one computes dQ only
  static constexpr int queue_readers = Config::has_dq_semaphores ? 3 : 2;  ///< producer, store and semaphore threads
  static constexpr int threads = (warpgroups + 1) * warpgroup_threads;
  static constexpr bool computes_ds = Config::computes_grad_query || Config::computes_grad_key;
  static constexpr bool adds_grad_output = Config::computes_grad_query && Config::Epilogue::has_addend;  ///< to dQ
  static_assert(Config::tile_keys == backward_tile_keys || Config::tile_keys == least_backward_tile_keys,
                "64 keys each, or 64 keys of one consumer");
  static_assert(Config::tile_queries == rows || (Config::tile_queries == warpgroups * rows &&
                                                 Config::head_dim <= box_columns && Config::head_dim_v <= box_columns),
                "registers for the scores of 128 queries");
  static constexpr bool splits_queries = Config::tile_queries > rows;  ///< between the consumers, for dQ
  // A CTA has 65,536 registers; a thread has a multiple of 8.
  static constexpr int consumer_registers = 240;
  static constexpr int producer_registers = 24;

  static constexpr bool has_batch_map = Config::Layout::has_batch_map;
  static constexpr int begins_item = has_batch_map ? Step::begins_item : Step::begins;
  static constexpr int ends_item = has_batch_map ? Step::ends_item : Step::ends;

  /// The number of the item in the queue.
  __device__ __forceinline__ static int item_of(const Step& step) {
    // Otherwise both numbers stay in registers, and an exact function spills.
    return has_batch_map ? static_cast<int>(launder(step.number)) / Step::key_tiles : step.number;
  }

  static constexpr int key_stages = 2;  ///< dQ of the last step needs K when S of the next key tile has begun
  static constexpr int score_stages = 2;

  using QueryTile = SwizzledTile<Config::tile_queries, Config::head_dim>;
  using GradOutputTile = SwizzledTile<Config::tile_queries, Config::head_dim_v>;
  using KeysTile = SwizzledTile<Config::tile_keys, Config::head_dim>;
  using ValuesTile = SwizzledTile<Config::tile_keys, Config::head_dim_v>;
  using ScoresTile = SwizzledTile<Config::tile_keys, Config::tile_queries>;  ///< rows are keys
  static constexpr int grad_query_columns = hopper::grad_query_columns(Config::tile_queries, Config::head_dim);
  static_assert(KeysTile::columns == (splits_queries ? 1 : warpgroups) * grad_query_columns, "what is not split");
  using GradQueryTile = NarrowTile<grad_query_columns>;
  static constexpr int grad_query_row_bytes = grad_query_columns * static_cast<int>(sizeof(float));
  static constexpr int staging_bytes = rows * grad_query_row_bytes;

  /// dK and dV leave in rounds of as many columns as a staging buffer has; with broadcast K/V, from registers.
  static constexpr int columns_of_round = splits_queries ? box_columns : staging_bytes / (rows * Element::bytes);
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

  static constexpr int values_at = key_stages * KeysTile::bytes;
  static constexpr int queries_at = values_at + ValuesTile::bytes;
  static constexpr int grad_outputs_at = queries_at + Config::stages * QueryTile::bytes;
  static constexpr int scores_at = grad_outputs_at + Config::stages * GradOutputTile::bytes;
  static constexpr int staging_at = scores_at + score_stages * ScoresTile::bytes;
  static constexpr int queue_at = staging_at + warpgroups * staging_bytes;
  static constexpr int due_barrier_at = queue_at + Queue::bytes;
  static constexpr int barriers_at = due_barrier_at + Barrier::bytes;
  static constexpr int stage_barriers = Barriers<Config::stages>::bytes;
  static constexpr int key_barriers = Barriers<key_stages>::bytes;
  static constexpr int key_barriers_at = barriers_at + 4 * stage_barriers;
  static constexpr int value_barriers_at = key_barriers_at + 2 * key_barriers;
  static constexpr int score_barriers_at = value_barriers_at + 2 * Barrier::bytes;
  static constexpr int staging_barriers_at = score_barriers_at + 2 * Barriers<score_stages>::bytes;
  static constexpr int semaphore_requests_at = staging_barriers_at + 4 * warpgroups * Barrier::bytes;
  static constexpr int steps_at = semaphore_requests_at + SemaphoreRequests::bytes;
  static constexpr int accumulator_phase_at = steps_at + Config::stages * static_cast<int>(sizeof(Step));
  static constexpr int shared_bytes = accumulator_phase_at + static_cast<int>(sizeof(unsigned));
  static_assert(shared_bytes <= 227 * 1024, "more than a CTA can have");

  unsigned char* memory;

  __device__ unsigned at(int offset) const { return shared_address(memory) + static_cast<unsigned>(offset); }
  __device__ KeysTile keys(int number) const { return KeysTile{at(0)}.stage(stage_of<key_stages>(number)); }
  __device__ ValuesTile values() const { return {at(values_at)}; }
  __device__ QueryTile queries(int step) const {
    return QueryTile{at(queries_at)}.stage(stage_of<Config::stages>(step));
  }
  __device__ GradOutputTile grad_outputs(int step) const {
    return GradOutputTile{at(grad_outputs_at)}.stage(stage_of<Config::stages>(step));
  }
  __device__ ScoresTile ds(int step) const { return ScoresTile{at(scores_at)}.stage(stage_of<score_stages>(step)); }

  __device__ Queue tiles() const { return Queue::at(memory + queue_at); }
  __device__ Barrier next_key_tile_due() const { return {at(due_barrier_at)}; }
  __device__ Barriers<Config::stages> query_full() const { return {at(barriers_at)}; }
  __device__ Barriers<Config::stages> query_empty() const { return {at(barriers_at + stage_barriers)}; }
  __device__ Barriers<Config::stages> grad_output_full() const { return {at(barriers_at + 2 * stage_barriers)}; }
  __device__ Barriers<Config::stages> grad_output_empty() const { return {at(barriers_at + 3 * stage_barriers)}; }
  __device__ Barriers<key_stages> key_full() const { return {at(key_barriers_at)}; }
  __device__ Barriers<key_stages> key_empty() const { return {at(key_barriers_at + key_barriers)}; }
  __device__ Barriers<1> value_full() const { return {at(value_barriers_at)}; }
  __device__ Barriers<1> value_empty() const { return {at(value_barriers_at + Barrier::bytes)}; }
  __device__ Barriers<score_stages> ds_full() const { return {at(score_barriers_at)}; }

  __device__ Barriers<score_stages> ds_empty() const { return {at(score_barriers_at + Barriers<score_stages>::bytes)}; }
  /// The staging buffer of a consumer: dQ of its columns, dK and dV of its rows, until the TMA store has read them.
  __device__ unsigned staging(int warpgroup) const { return at(staging_at + warpgroup * staging_bytes); }
  __device__ Barriers<1> staging_full(int warpgroup) const {
    return {at(staging_barriers_at + warpgroup * Barrier::bytes)};
  }
  __device__ Barriers<1> staging_empty(int warpgroup) const {
    return {at(staging_barriers_at + (warpgroups + warpgroup) * Barrier::bytes)};
  }
  /// The barriers of loads into a staging buffer: of accumulators of dQ, or of dO.
  __device__ Barrier accumulator_full(int warpgroup) const {
    return {at(staging_barriers_at + (2 * warpgroups + warpgroup) * Barrier::bytes)};
  }
  __device__ Barrier accumulator_empty(int warpgroup) const {
    return {at(staging_barriers_at + (3 * warpgroups + warpgroup) * Barrier::bytes)};
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
    query_full().initialise(1);
    query_empty().initialise(warpgroups * warpgroup_threads / 32);
    grad_output_full().initialise(1);
    grad_output_empty().initialise(key_warpgroups);
    key_full().initialise(1);
    key_empty().initialise(warpgroups);
    value_full().initialise(1);
    value_empty().initialise(key_warpgroups);
    ds_full().initialise(key_warpgroups * warpgroup_threads / 32);
    ds_empty().initialise(warpgroups);
    for (int warpgroup = 0; warpgroup < warpgroups; ++warpgroup) {
      staging_full(warpgroup).initialise(warpgroup_threads / 32);
      staging_empty(warpgroup).initialise(1);
      accumulator_full(warpgroup).initialise(1);
      accumulator_empty(warpgroup).initialise(warpgroup_threads);
    }
    semaphore_requests().initialise();
    accumulator_phase() = 0;
    next_key_tile_due().initialise(1);
    tiles().full.initialise(key_tile_words<typename Config::Mask>);
    tiles().empty.initialise(warpgroups * warpgroup_threads + queue_readers);
    fence_barrier_init();
  }
};

template <class Config>
constexpr int backward_threads = BackwardStorage<Config>::threads;
template <class Config>
constexpr int backward_shared_bytes = BackwardStorage<Config>::shared_bytes;

}  // namespace gdpa::hopper
