// Backward: the producer thread that loads K, V, Q and dO by TMA.
#pragma once

#include "hopper/backward_storage.cuh"

namespace gdpa::hopper {

/// Loads K, V, Q and dO, and writes the description of each step.
template <class Config>
__device__ void load_operands(const BackwardArguments& arguments, const BackwardStorage<Config>& shared) {
  using Shared = BackwardStorage<Config>;
  int step = 0, odd = 0, key_tiles = 0;
  const auto query_full = [&] { return shared.query_full()[stage_of<Config::stages>(step)]; };
  const auto grad_output_full = [&] { return shared.grad_output_full()[stage_of<Config::stages>(step)]; };
  for_all_key_tiles(shared.tiles(), [&](const auto& tile, int item) {
    const bool follows = Shared::has_batch_map && tile.is(tile.follows);
    const bool continues = Shared::has_batch_map && tile.is(tile.continues);
    const int number = Shared::has_batch_map ? key_tiles : item;
    if (!follows) {
      producer_acquire(shared.key_empty(), number);
      const Barrier key_full = shared.key_full()[stage_of<Shared::key_stages>(number)];
      key_full.arrive_and_expect(Shared::KeysTile::bytes);
      shared.keys(number).load(arguments.key.map, key_full.address, tile.key_head, tile.key);
    }
    for_all_query_tiles(tile, [&](int head, int position, int left) {
      const bool begins = left == tile.steps && !follows;
      signal_next_key_tile(shared.next_key_tile_due(), tile, left);
      producer_acquire(shared.query_empty(), step);
      const int row = tile.queries.row_offset(position, Config::tile_queries);
      int flags = Step::exists;
      if (begins) flags |= Step::begins;
      if (left == 1 && !continues) flags |= Step::ends;
      if (tile.steps == 1 && !follows && !continues) flags |= Step::only;
      if (Shared::has_batch_map) {
        if (left == tile.steps) flags |= Step::begins_item;
        if (left == 1) flags |= Step::ends_item;
      }
      if (tile.queries.is_full(position)) flags |= Step::full;
      const GradQuery is = grad_query_of<Config>(tile, position);
      if (is == GradQuery::last_writer) {
        flags |= Step::loads_accumulator + odd;
        odd ^= Step::odd_phase;
      } else if (uses_accumulators(is)) {
        flags |= Step::accumulated;
      }
      if (Shared::adds_grad_output && begins_grad_query(is)) {
        flags |= Step::loads_addend + odd;
        odd ^= Step::odd_phase;
      }
      shared.step(step) = {flags + static_cast<int>(accumulator_swizzle(tile.grad_query)) * Step::swizzle,
                           Shared::has_batch_map ? item * Step::key_tiles + number % Step::key_tiles : item, position,
                           head};
      query_full().arrive_and_expect(Shared::QueryTile::bytes);
      shared.queries(step).load(arguments.query.map, query_full().address, head,
                                Config::Layout::after(tile.query, row));
      producer_acquire(shared.grad_output_empty(), step);
      grad_output_full().arrive_and_expect(Shared::GradOutputTile::bytes);
      shared.grad_outputs(step).load(arguments.grad_output.map, grad_output_full().address, head,
                                     Config::Layout::after({tile.query.x, tile.grad_output_y}, row));
      // V has one stage. It is released when the last step of the previous key tile has begun: later than Q and dO.
      if (Shared::computes_ds && begins) {
        producer_acquire(shared.value_empty(), number);
        const Barrier value_full = shared.value_full()[0];
        value_full.arrive_and_expect(Shared::ValuesTile::bytes);
        shared.values().load(arguments.value.map, value_full.address, tile.key_head, {tile.key.x, tile.value_y});
      }
      ++step;
    });
    if (!continues) ++key_tiles;
  });
  producer_acquire(shared.query_empty(), step);
  shared.step(step) = {Step::only, 0, 0, 0};
  query_full().arrive();
  producer_acquire(shared.grad_output_empty(), step);
  grad_output_full().arrive();
}

}  // namespace gdpa::hopper
