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
      shared.query_pipeline(warpgroup).producer_acquire(number);
      const Barrier full = shared.query_pipeline(warpgroup).full_of(number);
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

/// Loads the tiles of K or V into their stages, which begin at `stages`. `y_of` gives the map coordinate y of the keys
/// of a tile.
template <class Config, class Tile, class Shared, class YOf>
__device__ void load_key_tiles(const QueryMajorArguments& arguments, const Shared& shared, const MappedOperand& operand,
                               const Tile& stages, const Pipeline<Config::stages>& pipeline, YOf y_of) {
  const auto nothing = [](const auto&, int) {};
  for_all_loads<Config>(shared.tiles(), nothing, [&](const auto& tile, int offset, int iteration) {
    const auto rows =
        Config::Layout::template key_rows<Config::tile_keys>(operand, arguments.common.params.keys, tile, offset);
    pipeline.producer_acquire(iteration);
    const Barrier full = pipeline.full_of(iteration);
    full.arrive_and_expect(Tile::bytes);
    rows.load(stages.stage(stage_of<Config::stages>(iteration)), operand, full.address, tile.key_head,
              {tile.key.x, y_of(tile)});
  });
}

/// Loads K.
template <class Config, class Shared>
__device__ void load_keys(const QueryMajorArguments& arguments, const Shared& shared) {
  load_key_tiles<Config>(arguments, shared, arguments.key, shared.keys(), shared.key_pipeline(),
                         [](const auto& tile) { return tile.key.y; });
}

/// Loads V. Its stages are released later than the stages of K, so it has its own thread.
template <class Config, class Shared>
__device__ void load_values(const QueryMajorArguments& arguments, const Shared& shared) {
  load_key_tiles<Config>(arguments, shared, arguments.value, shared.values(), shared.value_pipeline(),
                         [](const auto& tile) { return tile.value_y; });
}

}  // namespace gdpa::hopper
