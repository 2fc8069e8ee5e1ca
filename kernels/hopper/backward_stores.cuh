// Backward: the thread that moves dQ, dK and dV from shared memory to global memory by TMA.
#pragma once

#include "hopper/backward_storage.cuh"

namespace gdpa::hopper {

/// Before sums come to the staging places again. They were read long ago, since dQ has left from where they were; this
/// is for racecheck, which does not see that. By the sender.
template <class Config>
__device__ __forceinline__ void wait_for_read_sums(const BackwardPlan<Config>& plan) {
  const unsigned parity = plan.sums_taken() ^ 1;
#pragma unroll
  for (int warpgroup = 0; warpgroup < BackwardPlan<Config>::warpgroups; ++warpgroup) {
    plan.sums_are_read(warpgroup).wait(parity);
  }
  plan.sums_taken() = parity;
}

/// The sender: gradients from the staging places to where they go. What one holds is on its way while the other is
/// filled. dK and dV of a tile of keys come before the last dQ of it. Sums that a tile ends come to the staging places
/// as soon as they may.
template <class Config>
__device__ void send_gradients(const BackwardArguments& arguments, const BackwardPlan<Config>& plan) {
  using Plan = BackwardPlan<Config>;
  int step = 0, turns_over = 0;
  const auto end_turn = [&] {
    if (turns_over == step) return;
    plan.turns().end(turns_over);
    ++turns_over;
  };
  const auto send = [&](int times_staged, bool is_step, auto start) {
#pragma unroll
    for (int warpgroup = 0; warpgroup < Plan::warpgroups; ++warpgroup) {
      wait_for_turn(plan.staged(warpgroup), times_staged);
      if constexpr (Config::sums_begun) {
        if (warpgroup == 1 && is_step) {
          // All but what the first warpgroup has just sent has arrived.
          wait_for_stores<1>();
          end_turn();
        }
      }
      start(warpgroup, plan.staging(warpgroup));
      commit_stores();
      wait_for_stores_to_read();
      plan.staging_free(warpgroup)[0].arrive();
    }
  };
  for_all_key_tiles(plan.tiles(), [&](const KeyTile& tile, int number) {
    const auto send_key_gradient = [&](const TensorMap& map, int first_round, int rounds, int y) {
#pragma unroll 1
      for (int round = 0; round < rounds; ++round) {
        send(Plan::times_staged(step, number) + first_round + round, false, [&](int warpgroup, unsigned staging) {
          const int row = warpgroup * Plan::rows;
          if (tile.first_key + row >= tile.length_k) return;
          const int column = round * Plan::columns_of_round;
          typename Plan::RoundTile{staging}.store(map, column, tile.key_head, {tile.key.x + row, y});
        });
      }
    };
    for_all_query_tiles<Config>(tile, [&](int head, int row, int left) {
      if (left == 1) {
        send_key_gradient(arguments.grad_key.map, 0, Plan::key_rounds, tile.grad_key_y);
        send_key_gradient(arguments.grad_value.map, Plan::key_rounds, Plan::value_rounds, tile.grad_value_y);
      }
      if constexpr (!Config::computes_grad_query) return;
      const GradQuery is = grad_query_of<Config>(tile, row / Config::tile_queries);
      const auto row_of = [&](int warpgroup) { return row + (Plan::splits_queries ? warpgroup * Plan::rows : 0); };
      const auto sums = [&](int warpgroup) {
        return sums_at<Config>(arguments, head, Plan::splits_queries ? 0 : warpgroup,
                               tile.grad_query + row_of(warpgroup));
      };
      const auto bytes_of_sums = [&](int warpgroup) {
        const int rows = min(Plan::rows, tile.length_q - tile.first_query - row_of(warpgroup));
        return static_cast<unsigned>(max(rows, 0) * Plan::grad_query_row_bytes);
      };
      if constexpr (Config::sums_begun) {
        // Who has to pass this turn on may wait for the one before.
        if (!is_over(plan.turns().come, step)) {
          wait_for_stores();
          end_turn();
        }
        wait_for_turn(plan.turns().come, step);
      }
      if (is == GradQuery::ends_sums) {
        wait_for_read_sums(plan);
#pragma unroll 1
        for (int warpgroup = 0; warpgroup < Plan::warpgroups; ++warpgroup) {
          const Barrier have_come = plan.sums_have_come(warpgroup);
          const unsigned bytes = bytes_of_sums(warpgroup);
          have_come.arrive_and_expect(static_cast<int>(bytes));
          if (bytes != 0) load_bytes(plan.staging(warpgroup), sums(warpgroup), bytes, have_come.address);
        }
      }
      send(Plan::times_staged(step, number + static_cast<int>(left == 1)), true, [&](int warpgroup, unsigned staging) {
        const int column = Plan::splits_queries ? 0 : warpgroup * Plan::grad_query_columns;
        if (Plan::splits_queries && bytes_of_sums(warpgroup) == 0) return;  // no query has these rows
        if (is == GradQuery::added_to_sums) {
          add_to_global(sums(warpgroup), staging, bytes_of_sums(warpgroup));
        } else if (is == GradQuery::begins_sums) {
          store_bytes(sums(warpgroup), staging, bytes_of_sums(warpgroup));
        } else if (column < Config::head_dim) {
          const TensorMap& map = arguments.grad_query.map;
          const MapOrigin origin = {tile.query.x + row_of(warpgroup), tile.grad_query_y};
          if (is == GradQuery::added) {
            // What the tile of keys before has stored is there.
            if (left == tile.steps) wait_for_stores();
            add_box(map, staging, column, head, origin);
          } else {
            store_box(map, staging, column, head, origin);
          }
        }
      });
      ++step;
    });
  });
  wait_for_stores();
  if constexpr (Config::sums_begun) end_turn();
}

}  // namespace gdpa::hopper
