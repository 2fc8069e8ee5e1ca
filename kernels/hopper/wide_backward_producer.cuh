// Backward for head dims above 128: the producer threads that load K, V, Q and dO by TMA.
#pragma once

#include "hopper/wide_backward_storage.cuh"

namespace gdpa::hopper {

/// Loads K and V of each key tile. V is first, because it is released earlier.
template <class Config>
__device__ void load_keys_and_values(const BackwardArguments& arguments, const WideBackwardStorage<Config>& shared) {
  using Shared = WideBackwardStorage<Config>;
  for_all_key_tiles(shared.tiles(), [&](const auto& tile, int number) {
    const Barrier key_full = shared.key_full()[0], value_full = shared.value_full()[0];
    if constexpr (Shared::computes_ds) {
      producer_acquire(shared.value_empty(), number);
      value_full.arrive_and_expect(Shared::ValuesTile::bytes);
      shared.values().load(arguments.value.map, value_full.address, tile.key_head, {tile.key.x, tile.value_y});
    }
    producer_acquire(shared.key_empty(), number);
    key_full.arrive_and_expect(Shared::KeysTile::bytes);
    shared.keys().load(arguments.key.map, key_full.address, tile.key_head, tile.key);
  });
}

/// Loads the query tiles of Q or dO. `tile_of_step` gives the stage of a step, and `y_of` the map coordinate y of the
/// sequence of a key tile.
template <class Config, class TileOfStep, class YOf>
__device__ void load_query_tiles(const WideBackwardStorage<Config>& shared, const TensorMap& map,
                                 const Barriers<Config::stages>& full, const Barriers<Config::stages>& empty,
                                 TileOfStep tile_of_step, YOf y_of) {
  int step = 0;
  for_all_key_tiles(shared.tiles(), [&](const auto& tile, int) {
    for_all_query_tiles(tile, [&](int head, int position, int left) {
      signal_next_key_tile(shared.next_key_tile_due(), tile, left);
      const auto buffer = tile_of_step(step);
      const Barrier full_barrier = full[stage_of<Config::stages>(step)];
      producer_acquire(empty, step);
      full_barrier.arrive_and_expect(buffer.bytes);
      const int row = tile.queries.row_offset(position, Config::tile_queries);
      buffer.load(map, full_barrier.address, head, Config::Layout::after({tile.query.x, y_of(tile)}, row));
      ++step;
    });
  });
}

/// Loads Q.
template <class Config>
__device__ void load_queries(const BackwardArguments& arguments, const WideBackwardStorage<Config>& shared) {
  load_query_tiles<Config>(
      shared, arguments.query.map, shared.query_full(), shared.query_empty(),
      [&](int step) { return shared.queries(step); }, [](const auto& tile) { return tile.query.y; });
}

/// Loads dO.
template <class Config>
__device__ void load_grad_outputs(const BackwardArguments& arguments, const WideBackwardStorage<Config>& shared) {
  load_query_tiles<Config>(
      shared, arguments.grad_output.map, shared.grad_output_full(), shared.grad_output_empty(),
      [&](int step) { return shared.grad_outputs(step); }, [](const auto& tile) { return tile.grad_output_y; });
}

}  // namespace gdpa::hopper
