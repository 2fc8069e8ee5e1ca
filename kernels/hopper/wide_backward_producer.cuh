// Backward for head dims above 128: the producer threads that load K, V, Q and dO by TMA.
#pragma once

#include "hopper/wide_backward_storage.cuh"

namespace gdpa::hopper {

/// A loader: K and V of each tile, V first, which is free earlier.
template <class Config>
__device__ void load_keys_and_values(const BackwardArguments& arguments, const WideBackwardPlan<Config>& plan) {
  using Plan = WideBackwardPlan<Config>;
  for_all_key_tiles(plan.tiles(), [&](const KeyTile& tile, int number) {
    const Barrier key_filled = plan.key_filled()[0], value_filled = plan.value_filled()[0];
    if constexpr (Plan::computes_grad_scores) {
      wait_for_turn(plan.value_free(), number, 1);
      value_filled.arrive_and_expect(Plan::ValuesTile::bytes);
      plan.values().load(arguments.value.map, value_filled.address, tile.key_head, {tile.key.x, tile.value_y});
    }
    wait_for_turn(plan.key_free(), number, 1);
    key_filled.arrive_and_expect(Plan::KeysTile::bytes);
    plan.keys().load(arguments.key.map, key_filled.address, tile.key_head, tile.key);
  });
}

/// Of Q and of dO. `tile_of_step` gives the buffer, and `y_of` where the sequence of a tile of keys begins.
template <class Config, class TileOfStep, class YOf>
__device__ void load_query_tiles(const WideBackwardPlan<Config>& plan, const TensorMap& map,
                                 const Barriers<Config::stages>& filled, const Barriers<Config::stages>& free,
                                 TileOfStep tile_of_step, YOf y_of) {
  int step = 0;
  for_all_key_tiles(plan.tiles(), [&](const KeyTile& tile, int) {
    for_all_query_tiles<Config>(tile, [&](int head, int row, int left) {
      say_when_next_is_due(plan.next_is_due(), tile, left);
      const auto buffer = tile_of_step(step);
      const Barrier is_filled = filled[index_in<Config::stages>(step)];
      wait_for_turn(free, step, 1);
      is_filled.arrive_and_expect(buffer.bytes);
      buffer.load(map, is_filled.address, head, {tile.query.x + row, y_of(tile)});
      ++step;
    });
  });
}

/// A loader: Q.
template <class Config>
__device__ void load_queries(const BackwardArguments& arguments, const WideBackwardPlan<Config>& plan) {
  load_query_tiles<Config>(
      plan, arguments.query.map, plan.query_filled(), plan.query_free(), [&](int step) { return plan.queries(step); },
      [](const KeyTile& tile) { return tile.query.y; });
}

/// A loader: dO.
template <class Config>
__device__ void load_grad_outputs(const BackwardArguments& arguments, const WideBackwardPlan<Config>& plan) {
  load_query_tiles<Config>(
      plan, arguments.grad_output.map, plan.grad_output_filled(), plan.grad_output_free(),
      [&](int step) { return plan.grad_outputs(step); }, [](const KeyTile& tile) { return tile.grad_output_y; });
}

}  // namespace gdpa::hopper
