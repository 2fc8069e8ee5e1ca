// Backward: the roles of the threads, the layout of shared memory, and its barriers.
#pragma once

#include "hopper/grad_query_sums.cuh"
#include "hopper/key_schedule.cuh"
#include "hopper/tile.cuh"
#include "hopper/turns.cuh"
#include "hopper/warpgroup.cuh"

namespace gdpa::hopper {

/// What the computing warpgroups have to know of a step, a tile of queries of a tile of keys; where it does not exist,
/// that there are no more. The loader of Q finds it, so that no look-up lies between one product and the next.
struct Step {
  enum : int {
    exists = 1,
    begins = 2,   ///< it is the first of a tile of keys
    ends = 4,     ///< it is the last of it
    alone = 8,    ///< it is the only one; or it does not exist
    full = 16,    ///< scores need no test
    summed = 32,  ///< dQ goes to sums
    taken = 64,   ///< the sums come, to be stored with it
    odd = 128,    ///< where they have come an odd number of times before
    turn = 256    ///< from here on: turn_of_sums of the first query
  };
  int flags;
  int number;      ///< of the tile of keys
  int query_tile;  ///< of its head's

  __device__ __forceinline__ bool is(int flag) const { return (flags & flag) != 0; }
};

/// Who is who, and what lies where in shared memory.
template <class Config>
struct BackwardPlan {
  using Element = typename Config::Element;
  static constexpr int warpgroups = 2;                             ///< that compute
  static constexpr int rows = warpgroup_rows;                      ///< keys of a warpgroup
  static constexpr int ring_readers = Config::sums_begun ? 3 : 2;  ///< threads that do not compute
  static constexpr int threads = (warpgroups + 1) * warpgroup_threads;
  static constexpr bool computes_grad_scores = Config::computes_grad_query || Config::computes_grad_key;
  static_assert(Config::tile_keys == backward_tile_keys && Config::tile_keys == warpgroups * rows, "64 keys each");
  static_assert(Config::tile_queries == rows || (Config::tile_queries == warpgroups * rows &&
                                                 Config::head_dim <= box_columns && Config::head_dim_v <= box_columns),
                "registers for the scores of 128 queries");
  static constexpr bool splits_queries = Config::tile_queries > rows;  ///< between the warpgroups, for dQ
  // 65,536 registers in all, in multiples of 8 a thread.
  static constexpr int computing_registers = 240;
  static constexpr int other_registers = 24;

  static constexpr int key_stages = 2;  ///< K is needed until dQ of its last tile, when S of the next has begun
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

  /// dK and dV leave in rounds of as many columns as a staging place has; shared ones from registers.
  static constexpr int columns_of_round = splits_queries ? box_columns : staging_bytes / (rows * Element::bytes);
  using RoundTile = SwizzledTile<rows, columns_of_round>;
  static constexpr int rounds_of(int columns) {
    return Config::keys_shared ? 0 : (columns + columns_of_round - 1) / columns_of_round;
  }
  static constexpr int key_rounds = Config::computes_grad_key ? rounds_of(Config::head_dim) : 0;
  static constexpr int value_rounds = Config::computes_grad_value ? rounds_of(Config::head_dim_v) : 0;

  /// How often a staging place was filled behind dQ of so many steps, and dK and dV of so many tiles of keys.
  __device__ static int times_staged(int steps, int tiles) {
    return (Config::computes_grad_query ? steps : 0) + (key_rounds + value_rounds) * tiles;
  }

  static constexpr int values_at = key_stages * KeysTile::bytes;
  static constexpr int queries_at = values_at + ValuesTile::bytes;
  static constexpr int grad_outputs_at = queries_at + Config::stages * QueryTile::bytes;
  static constexpr int scores_at = grad_outputs_at + Config::stages * GradOutputTile::bytes;
  static constexpr int sums_at = scores_at + score_stages * ScoresTile::bytes;
  static constexpr int ring_at = sums_at + warpgroups * staging_bytes;
  static constexpr int due_barrier_at = ring_at + KeyRing::bytes;
  static constexpr int barriers_at = due_barrier_at + Barrier::bytes;
  static constexpr int stage_barriers = Barriers<Config::stages>::bytes;
  static constexpr int key_barriers = Barriers<key_stages>::bytes;
  static constexpr int key_barriers_at = barriers_at + 4 * stage_barriers;
  static constexpr int value_barriers_at = key_barriers_at + 2 * key_barriers;
  static constexpr int score_barriers_at = value_barriers_at + 2 * Barrier::bytes;
  static constexpr int staging_barriers_at = score_barriers_at + 2 * Barriers<score_stages>::bytes;
  static constexpr int turns_at = staging_barriers_at + 4 * warpgroups * Barrier::bytes;
  static constexpr int steps_at = turns_at + HeldTurns::bytes;
  static constexpr int sums_taken_at = steps_at + Config::stages * static_cast<int>(sizeof(Step));
  static constexpr int shared_bytes = sums_taken_at + static_cast<int>(sizeof(unsigned));
  static_assert(shared_bytes <= 227 * 1024, "more than a CTA can have");

  unsigned char* memory;

  __device__ unsigned at(int offset) const { return shared_address(memory) + static_cast<unsigned>(offset); }
  __device__ KeysTile keys(int number) const { return KeysTile{at(0)}.stage(index_in<key_stages>(number)); }
  __device__ ValuesTile values() const { return {at(values_at)}; }
  __device__ QueryTile queries(int step) const {
    return QueryTile{at(queries_at)}.stage(index_in<Config::stages>(step));
  }
  __device__ GradOutputTile grad_outputs(int step) const {
    return GradOutputTile{at(grad_outputs_at)}.stage(index_in<Config::stages>(step));
  }
  __device__ ScoresTile grad_scores(int step) const {
    return ScoresTile{at(scores_at)}.stage(index_in<score_stages>(step));
  }

  __device__ KeyRing tiles() const { return KeyRing::at(memory + ring_at); }
  __device__ Barrier next_is_due() const { return {at(due_barrier_at)}; }
  __device__ Barriers<Config::stages> query_filled() const { return {at(barriers_at)}; }
  __device__ Barriers<Config::stages> query_free() const { return {at(barriers_at + stage_barriers)}; }
  __device__ Barriers<Config::stages> grad_output_filled() const { return {at(barriers_at + 2 * stage_barriers)}; }
  __device__ Barriers<Config::stages> grad_output_free() const { return {at(barriers_at + 3 * stage_barriers)}; }
  __device__ Barriers<key_stages> key_filled() const { return {at(key_barriers_at)}; }
  __device__ Barriers<key_stages> key_free() const { return {at(key_barriers_at + key_barriers)}; }
  __device__ Barriers<1> value_filled() const { return {at(value_barriers_at)}; }
  __device__ Barriers<1> value_free() const { return {at(value_barriers_at + Barrier::bytes)}; }
  __device__ Barriers<score_stages> grad_scores_written() const { return {at(score_barriers_at)}; }

  __device__ Barriers<score_stages> grad_scores_free() const {
    return {at(score_barriers_at + Barriers<score_stages>::bytes)};
  }
  /// A warpgroup's gradients on their way out: dQ of its columns, dK and dV of its rows.
  __device__ unsigned staging(int warpgroup) const { return at(sums_at + warpgroup * staging_bytes); }
  __device__ Barriers<1> staged(int warpgroup) const { return {at(staging_barriers_at + warpgroup * Barrier::bytes)}; }
  __device__ Barriers<1> staging_free(int warpgroup) const {
    return {at(staging_barriers_at + (warpgroups + warpgroup) * Barrier::bytes)};
  }
  __device__ Barrier sums_have_come(int warpgroup) const {
    return {at(staging_barriers_at + (2 * warpgroups + warpgroup) * Barrier::bytes)};
  }
  __device__ Barrier sums_are_read(int warpgroup) const {
    return {at(staging_barriers_at + (3 * warpgroups + warpgroup) * Barrier::bytes)};
  }

  __device__ HeldTurns turns() const { return HeldTurns::at(memory + turns_at); }

  /// Whether sums have come to the staging places an odd number of times: the sender's, who has no register for it.
  __device__ volatile unsigned& sums_taken() const {
    return *reinterpret_cast<volatile unsigned*>(memory + sums_taken_at);
  }

  /// As long as its buffer of Q.
  __device__ Step& step(int number) const {
    return reinterpret_cast<Step*>(memory + steps_at)[index_in<Config::stages>(number)];
  }

  __device__ void initialise() const {
    query_filled().initialise(1);
    query_free().initialise(warpgroups * warpgroup_threads / 32);
    grad_output_filled().initialise(1);
    grad_output_free().initialise(warpgroups);
    key_filled().initialise(1);
    key_free().initialise(warpgroups);
    value_filled().initialise(1);
    value_free().initialise(warpgroups);
    grad_scores_written().initialise(warpgroups * warpgroup_threads / 32);
    grad_scores_free().initialise(warpgroups);
    for (int warpgroup = 0; warpgroup < warpgroups; ++warpgroup) {
      staged(warpgroup).initialise(warpgroup_threads / 32);
      staging_free(warpgroup).initialise(1);
      sums_have_come(warpgroup).initialise(1);
      sums_are_read(warpgroup).initialise(warpgroup_threads);
    }
    turns().initialise();
    sums_taken() = 0;
    next_is_due().initialise(1);
    tiles().filled.initialise(key_tile_words);
    tiles().free.initialise(warpgroups * warpgroup_threads + ring_readers);
    publish_barriers();
  }
};

template <class Config>
constexpr int backward_threads = BackwardPlan<Config>::threads;
template <class Config>
constexpr int backward_shared_bytes = BackwardPlan<Config>::shared_bytes;

}  // namespace gdpa::hopper
