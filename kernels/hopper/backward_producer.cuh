// Backward: the producer thread that loads K, V, Q and dO by TMA.
#pragma once

#include "hopper/backward_storage.cuh"

namespace gdpa::hopper {

/// The loader: K, V, Q and dO, and what there is to do in each step.
template <class Config>
__device__ void load_operands(const BackwardArguments& arguments, const BackwardPlan<Config>& plan) {
  using Plan = BackwardPlan<Config>;
  int step = 0, odd = 0;
  const auto query_filled = [&] { return plan.query_filled()[index_in<Config::stages>(step)]; };
  const auto grad_output_filled = [&] { return plan.grad_output_filled()[index_in<Config::stages>(step)]; };
  for_all_key_tiles(plan.tiles(), [&](const KeyTile& tile, int number) {
    wait_for_turn(plan.key_free(), number, 1);
    const Barrier key_filled = plan.key_filled()[index_in<Plan::key_stages>(number)];
    key_filled.arrive_and_expect(Plan::KeysTile::bytes);
    plan.keys(number).load(arguments.key.map, key_filled.address, tile.key_head, tile.key);
    for_all_query_tiles<Config>(tile, [&](int head, int row, int left) {
      const bool begins = left == tile.steps;
      say_when_next_is_due(plan.next_is_due(), tile, left);
      wait_for_turn(plan.query_free(), step, 1);
      const int query_tile = row / Config::tile_queries;
      int flags = Step::exists;
      if (begins) flags |= Step::begins;
      if (left == 1) flags |= Step::ends;
      if (tile.steps == 1) flags |= Step::alone;
      if (tile.full.holds(query_tile)) flags |= Step::full;
      const GradQuery is = grad_query_of<Config>(tile, query_tile);
      if (is == GradQuery::ends_sums) {
        flags |= Step::taken + odd;
        odd ^= Step::odd;
      } else if (has_sums(is)) {
        flags |= Step::summed;
      }
      plan.step(step) = {flags + static_cast<int>(turn_of_sums(tile.grad_query)) * Step::turn, number, query_tile};
      query_filled().arrive_and_expect(Plan::QueryTile::bytes);
      plan.queries(step).load(arguments.query.map, query_filled().address, head, {tile.query.x + row, tile.query.y});
      wait_for_turn(plan.grad_output_free(), step, 1);
      grad_output_filled().arrive_and_expect(Plan::GradOutputTile::bytes);
      plan.grad_outputs(step).load(arguments.grad_output.map, grad_output_filled().address, head,
                                   {tile.query.x + row, tile.grad_output_y});
      // V has one buffer, which is free when the last step of the tile before has begun: later than those of Q and dO.
      if (Plan::computes_grad_scores && begins) {
        wait_for_turn(plan.value_free(), number, 1);
        const Barrier value_filled = plan.value_filled()[0];
        value_filled.arrive_and_expect(Plan::ValuesTile::bytes);
        plan.values().load(arguments.value.map, value_filled.address, tile.key_head, {tile.key.x, tile.value_y});
      }
      ++step;
    });
  });
  wait_for_turn(plan.query_free(), step, 1);
  plan.step(step) = {Step::alone, 0, 0};
  query_filled().arrive();
  wait_for_turn(plan.grad_output_free(), step, 1);
  grad_output_filled().arrive();
}

}  // namespace gdpa::hopper
