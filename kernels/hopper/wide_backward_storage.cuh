// Backward for head dims above 128: the roles of the threads, the layout of shared memory, and its barriers.
#pragma once

#include "hopper/grad_query_accumulators.cuh"
#include "hopper/key_schedule.cuh"
#include "hopper/tile.cuh"
#include "pipeline/warpgroup.cuh"

namespace gdpa::hopper {

enum class Role : int { value, key };

/// The roles of the threads, and the layout of shared memory.
template <class Config>
struct WideBackwardStorage {
  using Queue = KeyTileQueue<typename Config::Mask>;
  static constexpr int consumers = 2;
  static constexpr int load_threads = 3;
  static constexpr int threads = (consumers + 1) * warpgroup_threads;
  static constexpr int rows = 64;  ///< of every tile
  static constexpr bool computes_ds = Config::computes_grad_query || Config::computes_grad_key;
  static constexpr int working_consumers = computes_ds ? 2 : 1;
  static_assert(Config::tile_keys == rows && Config::tile_queries == rows, "as many as a product has");
  static_assert(!Config::keys_shared && !Config::ordered, "the portable kernels have these");
  static_assert(!Config::has_dq_semaphores, "accumulators are cleared before, and rounded afterwards");
  // A CTA has 65,536 registers; a thread has a multiple of 8.
  static constexpr int consumer_registers = 240;
  static constexpr int producer_registers = 24;

  static constexpr int score_stages = 2;  ///< the dV consumer uses dS later

  using KeysTile = SwizzledTile<rows, Config::head_dim>;
  using ValuesTile = SwizzledTile<rows, Config::head_dim_v>;
  using ScoresTile = SwizzledTile<rows, rows>;  ///< rows are keys
  static constexpr int derivative_bytes = rows * rows * static_cast<int>(sizeof(float));

  static constexpr int values_at = KeysTile::bytes;
  static constexpr int queries_at = values_at + ValuesTile::bytes;
  static constexpr int grad_outputs_at = queries_at + Config::stages * KeysTile::bytes;
  static constexpr int scores_at = grad_outputs_at + Config::stages * ValuesTile::bytes;
  static constexpr int derivatives_at = scores_at + score_stages * ScoresTile::bytes;
  static constexpr int queue_at = derivatives_at + derivative_bytes;
  static constexpr int due_barrier_at = queue_at + Queue::bytes;
  static constexpr int barriers_at = due_barrier_at + Barrier::bytes;
  static constexpr int stage_barriers = Barriers<Config::stages>::bytes;
  static constexpr int key_barriers_at = barriers_at + 4 * stage_barriers;
  static constexpr int score_barriers_at = key_barriers_at + 4 * Barrier::bytes;
  static constexpr int shared_bytes = score_barriers_at + 2 * Barriers<score_stages>::bytes;
  static_assert(shared_bytes <= 227 * 1024, "more than a CTA can have");

  /// The named barrier of both consumers: f' of a query tile is in shared memory.
  static constexpr int derivatives_written = 1;
  static constexpr int consumer_threads = consumers * warpgroup_threads;

  unsigned char* memory;

  __device__ unsigned at(int offset) const { return shared_address(memory) + static_cast<unsigned>(offset); }
  __device__ KeysTile keys() const { return {at(0)}; }
  __device__ ValuesTile values() const { return {at(values_at)}; }
  __device__ KeysTile queries(int step) const { return KeysTile{at(queries_at)}.stage(stage_of<Config::stages>(step)); }
  __device__ ValuesTile grad_outputs(int step) const {
    return ValuesTile{at(grad_outputs_at)}.stage(stage_of<Config::stages>(step));
  }
  __device__ ScoresTile ds(int step) const { return ScoresTile{at(scores_at)}.stage(stage_of<score_stages>(step)); }
  /// Four numbers of f' of a thread. The thread of the same index in the other consumer has the same elements.
  __device__ unsigned derivatives(int piece) const {
    return at(derivatives_at) + (static_cast<unsigned>(piece) * warpgroup_threads + thread_in_warpgroup()) * 16;
  }

  __device__ Queue tiles() const { return Queue::at(memory + queue_at); }
  __device__ Barrier next_key_tile_due() const { return {at(due_barrier_at)}; }
  __device__ Barriers<Config::stages> query_full() const { return {at(barriers_at)}; }
  __device__ Barriers<Config::stages> query_empty() const { return {at(barriers_at + stage_barriers)}; }
  __device__ Barriers<Config::stages> grad_output_full() const { return {at(barriers_at + 2 * stage_barriers)}; }
  __device__ Barriers<Config::stages> grad_output_empty() const { return {at(barriers_at + 3 * stage_barriers)}; }
  __device__ Barriers<1> key_full() const { return {at(key_barriers_at)}; }
  __device__ Barriers<1> key_empty() const { return {at(key_barriers_at + Barrier::bytes)}; }
  __device__ Barriers<1> value_full() const { return {at(key_barriers_at + 2 * Barrier::bytes)}; }
  __device__ Barriers<1> value_empty() const { return {at(key_barriers_at + 3 * Barrier::bytes)}; }
  /// Also orders the reads of f': each thread arrives, because racecheck sees no other order between them.
  __device__ Barriers<score_stages> ds_full() const { return {at(score_barriers_at)}; }
  __device__ Barriers<score_stages> ds_empty() const { return {at(score_barriers_at + Barriers<score_stages>::bytes)}; }

  __device__ void initialise() const {
    query_full().initialise(1);
    query_empty().initialise(working_consumers);
    grad_output_full().initialise(1);
    grad_output_empty().initialise(working_consumers);
    next_key_tile_due().initialise(2);  // the producer threads of Q and of dO
    key_full().initialise(1);
    key_empty().initialise(working_consumers);
    value_full().initialise(1);
    value_empty().initialise(1);
    ds_full().initialise(warpgroup_threads);
    ds_empty().initialise(consumers);
    tiles().full.initialise(key_tile_words<typename Config::Mask>);
    tiles().empty.initialise(consumer_threads + load_threads);
    fence_barrier_init();
  }
};

template <class Config>
constexpr int wide_backward_threads = WideBackwardStorage<Config>::threads;
template <class Config>
constexpr int wide_backward_shared_bytes = WideBackwardStorage<Config>::shared_bytes;

}  // namespace gdpa::hopper
