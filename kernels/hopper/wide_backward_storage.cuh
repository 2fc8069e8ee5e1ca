// Backward for head dims above 128: the roles of the threads, the layout of shared memory, and its barriers.
#pragma once

#include "hopper/grad_query_sums.cuh"
#include "hopper/key_schedule.cuh"
#include "hopper/tile.cuh"
#include "hopper/warpgroup.cuh"

namespace gdpa::hopper {

enum class Side : int { value, key };

/// Who is who, and what lies where in shared memory.
template <class Config>
struct WideBackwardPlan {
  static constexpr int sides = 2;
  static constexpr int loaders = 3;
  static constexpr int threads = (sides + 1) * warpgroup_threads;
  static constexpr int rows = 64;  ///< of every tile
  static constexpr bool computes_grad_scores = Config::computes_grad_query || Config::computes_grad_key;
  static constexpr int working_sides = computes_grad_scores ? 2 : 1;
  static_assert(Config::tile_keys == rows && Config::tile_queries == rows, "as many as a product has");
  static_assert(!Config::keys_shared && !Config::ordered, "the portable kernels have these");
  static_assert(!Config::sums_begun, "sums are cleared before, and rounded behind");
  // 65,536 registers in all, in multiples of 8 a thread.
  static constexpr int computing_registers = 240;
  static constexpr int other_registers = 24;

  static constexpr int score_stages = 2;  ///< the value side multiplies dS later

  using KeysTile = SwizzledTile<rows, Config::head_dim>;
  using ValuesTile = SwizzledTile<rows, Config::head_dim_v>;
  using ScoresTile = SwizzledTile<rows, rows>;  ///< rows are keys
  static constexpr int derivative_bytes = rows * rows * static_cast<int>(sizeof(float));

  static constexpr int values_at = KeysTile::bytes;
  static constexpr int queries_at = values_at + ValuesTile::bytes;
  static constexpr int grad_outputs_at = queries_at + Config::stages * KeysTile::bytes;
  static constexpr int scores_at = grad_outputs_at + Config::stages * ValuesTile::bytes;
  static constexpr int derivatives_at = scores_at + score_stages * ScoresTile::bytes;
  static constexpr int ring_at = derivatives_at + derivative_bytes;
  static constexpr int due_barrier_at = ring_at + KeyRing::bytes;
  static constexpr int barriers_at = due_barrier_at + Barrier::bytes;
  static constexpr int stage_barriers = Barriers<Config::stages>::bytes;
  static constexpr int key_barriers_at = barriers_at + 4 * stage_barriers;
  static constexpr int score_barriers_at = key_barriers_at + 4 * Barrier::bytes;
  static constexpr int shared_bytes = score_barriers_at + 2 * Barriers<score_stages>::bytes;
  static_assert(shared_bytes <= 227 * 1024, "more than a CTA can have");

  /// A numbered barrier of both sides: f' of a tile of queries is there.
  static constexpr int derivatives_written = 1;
  static constexpr int computing_threads = sides * warpgroup_threads;

  unsigned char* memory;

  __device__ unsigned at(int offset) const { return shared_address(memory) + static_cast<unsigned>(offset); }
  __device__ KeysTile keys() const { return {at(0)}; }
  __device__ ValuesTile values() const { return {at(values_at)}; }
  __device__ KeysTile queries(int step) const { return KeysTile{at(queries_at)}.stage(index_in<Config::stages>(step)); }
  __device__ ValuesTile grad_outputs(int step) const {
    return ValuesTile{at(grad_outputs_at)}.stage(index_in<Config::stages>(step));
  }
  __device__ ScoresTile grad_scores(int step) const {
    return ScoresTile{at(scores_at)}.stage(index_in<score_stages>(step));
  }
  /// Four of f', of a thread of either side: the one of this index in the other has the same elements.
  __device__ unsigned derivatives(int piece) const {
    return at(derivatives_at) + (static_cast<unsigned>(piece) * warpgroup_threads + fresh_thread_index()) * 16;
  }

  __device__ KeyRing tiles() const { return KeyRing::at(memory + ring_at); }
  __device__ Barrier next_is_due() const { return {at(due_barrier_at)}; }
  __device__ Barriers<Config::stages> query_filled() const { return {at(barriers_at)}; }
  __device__ Barriers<Config::stages> query_free() const { return {at(barriers_at + stage_barriers)}; }
  __device__ Barriers<Config::stages> grad_output_filled() const { return {at(barriers_at + 2 * stage_barriers)}; }
  __device__ Barriers<Config::stages> grad_output_free() const { return {at(barriers_at + 3 * stage_barriers)}; }
  __device__ Barriers<1> key_filled() const { return {at(key_barriers_at)}; }
  __device__ Barriers<1> key_free() const { return {at(key_barriers_at + Barrier::bytes)}; }
  __device__ Barriers<1> value_filled() const { return {at(key_barriers_at + 2 * Barrier::bytes)}; }
  __device__ Barriers<1> value_free() const { return {at(key_barriers_at + 3 * Barrier::bytes)}; }
  /// Behind it f' has been read too: each thread arrives, since racecheck sees no other order between those.
  __device__ Barriers<score_stages> grad_scores_written() const { return {at(score_barriers_at)}; }
  __device__ Barriers<score_stages> grad_scores_free() const {
    return {at(score_barriers_at + Barriers<score_stages>::bytes)};
  }

  __device__ void initialise() const {
    query_filled().initialise(1);
    query_free().initialise(working_sides);
    grad_output_filled().initialise(1);
    grad_output_free().initialise(working_sides);
    next_is_due().initialise(2);  // loaders
    key_filled().initialise(1);
    key_free().initialise(working_sides);
    value_filled().initialise(1);
    value_free().initialise(1);
    grad_scores_written().initialise(warpgroup_threads);
    grad_scores_free().initialise(sides);
    tiles().filled.initialise(key_tile_words);
    tiles().free.initialise(computing_threads + loaders);
    publish_barriers();
  }
};

template <class Config>
constexpr int wide_backward_threads = WideBackwardPlan<Config>::threads;
template <class Config>
constexpr int wide_backward_shared_bytes = WideBackwardPlan<Config>::shared_bytes;

}  // namespace gdpa::hopper
