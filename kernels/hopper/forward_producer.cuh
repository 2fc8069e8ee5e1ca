// Forward: the producer threads that load Q, K and V by TMA.
#pragma once

#include "hopper/forward_storage.cuh"

namespace gdpa::hopper {

/// Calls start(tile, number) for each query tile, and load(tile, offset, iteration) for each key tile that has to be
/// loaded, `offset` rows after the row of the origin of K. By one thread, which is a consumer of the queue.
template <class Config, class Start, class Load>
__device__ void for_all_loads(const QueryTileQueue<typename Config::Mask>& queue, Start start, Load load) {
  int iteration = 0;
  for (int number = 0;; ++number) {
    const QueryTile<typename Config::Mask>& tile = queue.consumer_wait(number);
    if (tile.keys.size() == 0) return;
    start(tile, number);
    const int count = tile.is(tile.loads_keys) ? tile.keys.size() : 0;
    for (int i = 0; i < count; ++i, ++iteration) load(tile, tile.keys.row_offset(i, Config::tile_keys), iteration);
    queue.consumer_release(number);
  }
}

/// Loads Q. The consumers release its stages in ping-pong order.
template <class Config>
__device__ void load_queries(const ForwardArguments& arguments, const ForwardStorage<Config>& shared) {
  using Shared = ForwardStorage<Config>;
  const auto load_query = [&](const auto& tile, int number) {
    for (int warpgroup = 0; warpgroup < Shared::warpgroups; ++warpgroup) {
      producer_acquire(shared.query_empty(warpgroup), number);
      const Barrier full = shared.query_full(warpgroup)[stage_of<Config::query_stages>(number)];
      const int row = warpgroup * Shared::rows;
      if (tile.first_query + row < tile.length_q) {
        full.arrive_and_expect(Shared::QueryTile::bytes);
        shared.query(number, warpgroup)
            .load(arguments.query.map, full.address, tile.head, Config::Layout::after(tile.query, row));
      } else {
        full.arrive();  // the stage keeps old data; these rows are never stored
      }
    }
  };
  for_all_loads<Config>(shared.tiles(), load_query, [](const auto&, int, int) {});
}

/// Loads K.
template <class Config>
__device__ void load_keys(const ForwardArguments& arguments, const ForwardStorage<Config>& shared) {
  using Shared = ForwardStorage<Config>;
  const auto nothing = [](const auto&, int) {};
  for_all_loads<Config>(shared.tiles(), nothing, [&](const auto& tile, int offset, int iteration) {
    const int stage = stage_of<Config::stages>(iteration);
    producer_acquire(shared.key_empty(), iteration);
    const Barrier full = shared.key_full()[stage];
    full.arrive_and_expect(Shared::KeyTile::bytes);
    shared.keys().stage(stage).load(arguments.key.map, full.address, tile.key_head,
                                    Config::Layout::after(tile.key, offset));
  });
}

/// Loads V. Its stages are released later than the stages of K, so it has its own thread.
template <class Config>
__device__ void load_values(const ForwardArguments& arguments, const ForwardStorage<Config>& shared) {
  using Shared = ForwardStorage<Config>;
  const auto nothing = [](const auto&, int) {};
  for_all_loads<Config>(shared.tiles(), nothing, [&](const auto& tile, int offset, int iteration) {
    const int stage = stage_of<Config::stages>(iteration);
    producer_acquire(shared.value_empty(), iteration);
    const Barrier full = shared.value_full()[stage];
    full.arrive_and_expect(Shared::ValueTile::bytes);
    shared.values().stage(stage).load(arguments.value.map, full.address, tile.key_head,
                                      Config::Layout::after({tile.key.x, tile.value_y}, offset));
  });
}

}  // namespace gdpa::hopper
