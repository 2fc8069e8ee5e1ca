// The kernels whose CTAs own query tiles: the producer threads that load Q, K and V by TMA. `Shared` is the
// QueryMajorStorage of the kernel.
#pragma once

#include "hopper/query_major_storage.cuh"

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

/// Loads Q of each query tile, for each warpgroup. load_more(tile, number, warpgroup, row, barrier) loads the other
/// operands of the queries from row `row` of the tile on. `bytes` are the bytes of all of them.
template <class Config, class Shared, class LoadMore>
__device__ void load_queries(const QueryMajorArguments& arguments, const Shared& shared, int bytes,
                             LoadMore load_more) {
  const auto load = [&](const auto& tile, int number) {
    for (int warpgroup = 0; warpgroup < Shared::warpgroups; ++warpgroup) {
      producer_acquire(shared.query_empty(warpgroup), number);
      const Barrier full = shared.query_full(warpgroup)[stage_of<Config::query_stages>(number)];
      const int row = warpgroup * Shared::rows;
      if (tile.first_query + row < tile.length_q) {
        full.arrive_and_expect(bytes);
        shared.query(number, warpgroup)
            .load(arguments.query.map, full.address, tile.head, Config::Layout::after(tile.query, row));
        load_more(tile, number, warpgroup, row, full.address);
      } else {
        full.arrive();  // the stage keeps old data; no result of these rows is used
      }
    }
  };
  for_all_loads<Config>(shared.tiles(), load, [](const auto&, int, int) {});
}

/// Loads K.
template <class Config, class Shared>
__device__ void load_keys(const QueryMajorArguments& arguments, const Shared& shared) {
  const auto nothing = [](const auto&, int) {};
  for_all_loads<Config>(shared.tiles(), nothing, [&](const auto& tile, int offset, int iteration) {
    const int stage = stage_of<Config::stages>(iteration);
    const auto rows = Config::Layout::template key_rows<Config::tile_keys>(arguments.key, arguments.common.params.keys,
                                                                           tile, offset);
    producer_acquire(shared.key_empty(), iteration);
    const Barrier full = shared.key_full()[stage];
    full.arrive_and_expect(Shared::KeyTile::bytes);
    rows.load(shared.keys().stage(stage), arguments.key, full.address, tile.key_head, tile.key);
  });
}

/// Loads V. Its stages are released later than the stages of K, so it has its own thread.
template <class Config, class Shared>
__device__ void load_values(const QueryMajorArguments& arguments, const Shared& shared) {
  const auto nothing = [](const auto&, int) {};
  for_all_loads<Config>(shared.tiles(), nothing, [&](const auto& tile, int offset, int iteration) {
    const int stage = stage_of<Config::stages>(iteration);
    const auto rows = Config::Layout::template key_rows<Config::tile_keys>(
        arguments.value, arguments.common.params.keys, tile, offset);
    producer_acquire(shared.value_empty(), iteration);
    const Barrier full = shared.value_full()[stage];
    full.arrive_and_expect(Shared::ValueTile::bytes);
    rows.load(shared.values().stage(stage), arguments.value, full.address, tile.key_head,
              {tile.key.x, tile.value_y});
  });
}

}  // namespace gdpa::hopper
