// Forward: the producer threads that load Q, K and V by TMA.
#pragma once

#include "hopper/forward_storage.cuh"

namespace gdpa::hopper {

/// Calls start(tile, number) for every tile of queries, and load(tile, row, turn) for every tile of keys that is to be
/// loaded; by one thread, which is one of the ring's readers.
template <class Config, class Start, class Load>
__device__ void for_all_loads(const TileRing& ring, Start start, Load load) {
  int turn = 0;
  for (int number = 0;; ++number) {
    const Tile& tile = ring.wait(number);
    if (tile.key_tiles == 0) return;
    start(tile, number);
    const int count = tile.loads ? tile.key_tiles : 0;
    for (int i = 0; i < count; ++i, ++turn) load(tile, i * Config::tile_keys, turn);
    ring.release(number);
  }
}

/// The first loader: Q, whose buffers become free in the order in which the warpgroups take their turns.
template <class Config>
__device__ void load_queries(const ForwardArguments& arguments, const ForwardPlan<Config>& plan) {
  using Plan = ForwardPlan<Config>;
  const auto load_query = [&](const Tile& tile, int number) {
    for (int warpgroup = 0; warpgroup < Plan::warpgroups; ++warpgroup) {
      wait_for_turn(plan.query_free(warpgroup), number, 1);
      const Barrier filled = plan.query_filled(warpgroup)[index_in<Config::query_stages>(number)];
      const int row = warpgroup * Plan::rows;
      if (tile.first_query + row < tile.length_q) {
        filled.arrive_and_expect(Plan::QueryTile::bytes);
        plan.query(number, warpgroup)
            .load(arguments.query.map, filled.address, tile.head, {tile.query.x + row, tile.query.y});
      } else {
        filled.arrive();  // whatever lies there; nobody stores these rows
      }
    }
  };
  for_all_loads<Config>(plan.tiles(), load_query, [](const Tile&, int, int) {});
}

/// The second loader: K.
template <class Config>
__device__ void load_keys(const ForwardArguments& arguments, const ForwardPlan<Config>& plan) {
  using Plan = ForwardPlan<Config>;
  const auto nothing = [](const Tile&, int) {};
  for_all_loads<Config>(plan.tiles(), nothing, [&](const Tile& tile, int row, int turn) {
    const int stage = index_in<Config::stages>(turn);
    wait_for_turn(plan.key_free(), turn, 1);
    const Barrier filled = plan.key_filled()[stage];
    filled.arrive_and_expect(Plan::KeyTile::bytes);
    plan.keys().stage(stage).load(arguments.key.map, filled.address, tile.key_head, {tile.key.x + row, tile.key.y});
  });
}

/// The third loader: V, whose buffers become free at another time than those of K.
template <class Config>
__device__ void load_values(const ForwardArguments& arguments, const ForwardPlan<Config>& plan) {
  using Plan = ForwardPlan<Config>;
  const auto nothing = [](const Tile&, int) {};
  for_all_loads<Config>(plan.tiles(), nothing, [&](const Tile& tile, int row, int turn) {
    const int stage = index_in<Config::stages>(turn);
    wait_for_turn(plan.value_free(), turn, 1);
    const Barrier filled = plan.value_filled()[stage];
    filled.arrive_and_expect(Plan::ValueTile::bytes);
    plan.values().stage(stage).load(arguments.value.map, filled.address, tile.key_head,
                                    {tile.key.x + row, tile.value_y});
  });
}

}  // namespace gdpa::hopper
