// Forward: the producer thread that loads Q by TMA.
#pragma once

#include "hopper/forward_storage.cuh"
#include "hopper/key_producer.cuh"

namespace gdpa::hopper {

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

}  // namespace gdpa::hopper
