// Forward: the main loop of a consumer warpgroup.
#pragma once

#include "hopper/forward_epilogue.cuh"

namespace gdpa::hopper {

/// One consumer warpgroup.
template <class Config, Scores scores_are>
struct ForwardConsumer : ForwardEpilogue<Config> {
  using Base = ForwardEpilogue<Config>;
  using Base::arguments, Base::issue_output, Base::issue_scores, Base::key_steps, Base::leads, Base::load_query,
      Base::output, Base::own_barrier, Base::plan, Base::release_query, Base::score_scale, Base::scores,
      Base::store_from_registers, Base::store_through_query, Base::turn_barrier, Base::warpgroup, Base::weights;
  using typename Base::Activation, typename Base::Element, typename Base::Plan;

  // The turn to issue products, where there are two warpgroups.
  __device__ __forceinline__ void take_turn() const {
    if (Plan::warpgroups > 1) named_wait(turn_barrier + warpgroup, Plan::warpgroups * warpgroup_threads);
  }
  __device__ __forceinline__ void give_turn() const {
    if (Plan::warpgroups > 1) named_arrive(turn_barrier + (warpgroup ^ 1), Plan::warpgroups * warpgroup_threads);
  }

  /// Scores to weights, still in fp32 and in the registers of the scores.
  __device__ __forceinline__ void apply_function() {
    constexpr bool scales = Activation::scales_scores && !Config::scales_query;
    const float scale = score_scale();
#pragma unroll
    for (int i = 0; i < Config::tile_keys / 2; ++i) {
      const float x = scales ? scores[i] * scale : scores[i];
      scores[i] = scores_are == Scores::bounded ? Activation::value(x) : Activation::value_of_finite(x);
    }
  }

  /// A weight that is NaN makes a whole row of O NaN, so that one column tells.
  __device__ __forceinline__ void look_for_nan(const Tile& tile) {
    if (scores_are == Scores::bounded || !Activation::bounds_scores) return;
    const unsigned thread = fresh_thread_index();
    const int row = warpgroup * Plan::rows + static_cast<int>(thread / 32 * 16 + thread % 32 / 4);
    const int rows = tile.length_q - tile.first_query;
    const bool found = (row < rows && output[0] != output[0]) || (row + 8 < rows && output[2] != output[2]);
    if (found) plan.pass() = Pass::first_that_found_nan;
  }

  __device__ __forceinline__ static bool is_full(const Tile& tile, int key_tile) {
    const int begin = tile.full_begin, end = tile.full_end;
    return uniform(static_cast<int>(key_tile >= begin && key_tile < end)) != 0;
  }

  /// Weights that do not count become 0, whatever they are: f(0) may be infinite.
  __device__ __forceinline__ void apply_mask(const Tile& tile, int key_tile) {
    const MaskOfSequence mask{arguments.common.params.mask, tile.length_q, tile.length_k};
    const int first_key = tile.first_key + key_tile * Config::tile_keys;
    const unsigned thread = fresh_thread_index(), lane = thread % 32;
    const int row = tile.first_query + warpgroup * Plan::rows + static_cast<int>(thread / 32 * 16 + lane / 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Kept kept = mask.row(row + half * 8);
      kept.begin -= first_key + static_cast<int>(lane % 4 * 2);
#pragma unroll
      for (int j = 0; j < Config::tile_keys / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (!kept.holds(j * 8 + i)) scores[j * 4 + half * 2 + i] = 0.0f;
        }
      }
    }
  }

  __device__ __forceinline__ void pack_weights() {
#pragma unroll
    for (int step = 0; step < key_steps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[step][i] =
            Element::template pack<Activation::clamps_at_zero>(scores[step * 8 + i * 2], scores[step * 8 + i * 2 + 1]);
      }
    }
  }

  __device__ __forceinline__ void store_output(const Tile& tile, int number) {
    look_for_nan(tile);
    if constexpr (Config::query_in_registers) {
      store_through_query(tile, number);
    } else {
      store_from_registers(tile, number);
    }
  }

  /// A key tile of a tile of queries, and what the loop asks of them, in registers.
  struct Position {
    int key_tiles;  ///< of the tile; 0: there are no more tiles
    int keeps;      ///< the next tile finds K and V in the buffers
    int number;     ///< of the tile
    int key_tile = 0;
    bool full = true;  ///< no score needs a test
    Turn<Config::stages> turn = {};

    __device__ __forceinline__ Position(const Tile& tile, int number_)
        : key_tiles(uniform(tile.key_tiles)), keeps(uniform(tile.keeps)), number(number_) {
      if (key_tiles > 0) full = is_full(tile, 0);
    }
    __device__ __forceinline__ bool ends() const { return key_tile + 1 == key_tiles; }
  };

  __device__ __forceinline__ Position after(const Position& now) const {
    Position next = now;
    if (now.ends()) {
      const Tile& tile = plan.tiles().wait(now.number + 1);
      next = Position(tile, now.number + 1);
      if (next.key_tiles == 0) return next;
      next.turn = uniform(tile.loads) != 0 ? now.turn.next() : now.turn.before(now.key_tile);
    } else {
      ++next.key_tile;
      next.full = is_full(plan.tiles()[now.number], next.key_tile);
      next.turn = now.turn.next();
    }
    // The compiler loses sight of what is uniform in the loop, and would keep it, and every descriptor, in registers.
    next.number = uniform(next.number);
    next.turn.buffer = uniform(next.turn.buffer);
    return next;
  }

  __device__ __forceinline__ void run() {
    const TileRing ring = plan.tiles();
    Position now(ring.wait(0), 0);  // weights are made of it, and P V is about it next
    if (now.key_tiles == 0) return;
    if (warpgroup == 1) give_turn();  // the other begins

    load_query(0);
    if (Config::query_in_registers) {
      publish_to_copies();  // a copy of Q may replace what was read (docs/kernels/hopper-memory-model.md)
      named_wait(own_barrier + warpgroup, warpgroup_threads);
      release_query(0);
    }
    wait_for_turn(plan.key_filled(), now.turn);
    issue_scores(0, 0);
    wait_for_products<0>();
    if (leads() && now.keeps == 0) plan.key_free()[0].arrive();
    if (!Config::query_in_registers && now.ends()) release_query(0);
    apply_function();
    if (!now.full) apply_mask(ring[0], 0);
    pack_weights();

    Position next = after(now);  // Q K^T is about it
    while (next.key_tiles > 0) {
      const bool ends = next.key_tile == 0;  // a tile of queries
      // O of the tile before, in the place of Q
      const bool has_stored = Config::query_in_registers && now.key_tile == 0 && now.number > 0;
      if (ends) {
        if (has_stored) release_query(now.number);
        load_query(next.number);
      }
      wait_for_turn(plan.key_filled(), next.turn);
      take_turn();
      issue_scores(next.number, next.turn.buffer);
      wait_for_turn(plan.value_filled(), now.turn);
      issue_output(now.turn.buffer, now.key_tile > 0);
      give_turn();
      if (has_stored && !ends) release_query(now.number);
      wait_for_products<1>();
      if (leads() && next.keeps == 0) plan.key_free()[next.turn.buffer].arrive();
      if (!Config::query_in_registers && next.ends()) release_query(next.number);
      apply_function();
      if (!next.full) apply_mask(ring[next.number], next.key_tile);
      // Looked up here, while P V runs, so that only the turn lies between its end and the next products.
      const Position last = now;
      now = next;
      next = after(now);
      // Waits for nothing, but begins a block of its own: the compiler would move the function below the wait for P V.
      // A barrier of K or V would not do: it can be a lap further by the time when a slow warp asks, which then waits
      // for ever. The ring keeps this tile until all warps have stored it.
      ring.wait(now.number);
      wait_for_products<0>();
      if (leads() && last.keeps == 0) plan.value_free()[last.turn.buffer].arrive();
      pack_weights();
      if (ends) store_output(ring[last.number], last.number);
    }
    // Takes the turn that is left over: another pass begins with none.
    if (warpgroup == 0) take_turn();
    wait_for_turn(plan.value_filled(), now.turn);
    issue_output(now.turn.buffer, now.key_tile > 0);
    wait_for_products<0>();
    if (Config::query_in_registers) {
      // Nobody has emptied this place: no Q follows.
      if (leads()) wait_for_stores_to_read();
      named_wait(own_barrier + warpgroup, warpgroup_threads);
    }
    store_output(ring[now.number], now.number);
    if (Config::query_in_registers && leads()) wait_for_stores();
  }
};

}  // namespace gdpa::hopper
