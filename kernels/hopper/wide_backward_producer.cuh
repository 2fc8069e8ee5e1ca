// Backward for head dims above 128: the producer threads that load K, V, Q and dO by TMA.
#pragma once

#include "hopper/wide_backward_storage.cuh"

namespace gdpa::hopper {

/// Loads K and V of each key tile. V is first, because it is released earlier.
template <class Config>
__device__ void load_keys_and_values(const BackwardArguments& arguments, const WideBackwardStorage<Config>& shared) {
  using Shared = WideBackwardStorage<Config>;
  for_all_key_tiles(shared.tiles(), [&](const auto& tile, int number) {
    if constexpr (Shared::computes_ds) {
      shared.value_pipeline().producer_acquire(number);
      shared.values().fill(shared.value_pipeline().full_of(number), arguments.value.map, tile.key_head,
                           {tile.key.x, tile.value_y});
    }
    shared.key_pipeline().producer_acquire(number);
    shared.keys(number).fill(shared.key_pipeline().full_of(number), arguments.key.map, tile.key_head, tile.key);
  });
}

/// Loads the query tiles of Q or dO. `tile_of_step` gives the stage of a step, and `y_of` the map coordinate y of the
/// sequence of a key tile.
template <class Config, class TileOfStep, class YOf>
__device__ void load_query_tiles(const WideBackwardStorage<Config>& shared, const TensorMap& map,
                                 const Pipeline<Config::stages>& pipeline, TileOfStep tile_of_step, YOf y_of) {
  int step = 0;
  for_all_key_tiles(shared.tiles(), [&](const auto& tile, int) {
    for_all_query_tiles(tile, [&](int head, int position, int left) {
      signal_next_key_tile(shared.next_key_tile_due(), tile, left);
      pipeline.producer_acquire(step);
      const int row = tile.queries.row_offset(position, Config::tile_queries);
      tile_of_step(step).fill(pipeline.full_of(step), map, head,
                              Config::Layout::after({tile.query.x, y_of(tile)}, row));
      ++step;
    });
  });
}

/// Loads Q.
template <class Config>
__device__ void load_queries(const BackwardArguments& arguments, const WideBackwardStorage<Config>& shared) {
  load_query_tiles<Config>(
      shared, arguments.query.map, shared.query_pipeline(), [&](int step) { return shared.queries(step); },
      [](const auto& tile) { return tile.query.y; });
}

/// Loads dO.
template <class Config>
__device__ void load_grad_outputs(const BackwardArguments& arguments, const WideBackwardStorage<Config>& shared) {
  load_query_tiles<Config>(
      shared, arguments.grad_output.map, shared.grad_output_pipeline(),
      [&](int step) { return shared.grad_outputs(step); }, [](const auto& tile) { return tile.grad_output_y; });
}

}  // namespace gdpa::hopper
