// Backward: the thread that moves dQ, dK and dV from shared memory to global memory by TMA.
#pragma once

#include "hopper/backward_storage.cuh"

namespace gdpa::hopper {

/// Waits until the consumers have read the previous accumulators, or dO, from the staging buffers. They have, since dQ
/// has left from the same buffers. The wait is for racecheck, which does not see this.
template <class Config>
__device__ __forceinline__ void wait_for_accumulator_empty(const BackwardStorage<Config>& shared) {
  const unsigned parity = shared.accumulator_phase() ^ 1;
#pragma unroll
  for (int warpgroup = 0; warpgroup < BackwardStorage<Config>::warpgroups; ++warpgroup) {
    shared.accumulator_empty(warpgroup).wait(parity);
  }
  shared.accumulator_phase() = parity;
}

/// The store thread: moves gradients from the staging buffers to global memory. One buffer is stored while the other is
/// filled. dK and dV of a key tile come before its last dQ. If this CTA is the last writer of dQ of a query tile, the
/// accumulators are loaded into the staging buffers as soon as the semaphore allows it. If dQ begins with dO, dO is
/// loaded in the same way.
template <class Config>
__device__ void store_gradients(const BackwardArguments& arguments, const BackwardStorage<Config>& shared) {
  using Shared = BackwardStorage<Config>;
  int step = 0, key_tiles = 0, requests_done = 0;
  const auto end_request = [&] {
    if (requests_done == step) return;
    shared.semaphore_requests().mark_added(requests_done);
    ++requests_done;
  };
  const auto store_staged = [&](int tiles, int round, bool is_step, auto start) {
    const int warpgroups = is_step ? Shared::warpgroups : Shared::key_warpgroups;
#pragma unroll
    for (int warpgroup = 0; warpgroup < warpgroups; ++warpgroup) {
      consumer_wait(shared.staging_full(warpgroup), Shared::times_staged(warpgroup, step, tiles) + round);
      if constexpr (Config::has_dq_semaphores) {
        if (warpgroup == 1 && is_step) {
          // All stores but the one of the first warpgroup are complete.
          tma_store_wait<1>();
          end_request();
        }
      }
      start(warpgroup, shared.staging(warpgroup));
      tma_store_commit();
      tma_store_wait_read();
      shared.staging_empty(warpgroup)[0].arrive();
    }
  };
  for_all_key_tiles(shared.tiles(), [&](const auto& tile, int item) {
    const int number = Shared::has_batch_map ? key_tiles : item;
    const auto ends = [&](int left) { return left == 1 && !(Shared::has_batch_map && tile.is(tile.continues)); };
    const auto store_key_gradient = [&](const TensorMap& map, int first_round, int rounds, int y) {
#pragma unroll 1
      for (int round = 0; round < rounds; ++round) {
        store_staged(number, first_round + round, false, [&](int warpgroup, unsigned staging) {
          const int row = warpgroup * Shared::rows;
          if (tile.first_key + row >= tile.length_k) return;
          const int column = round * Shared::columns_of_round;
          typename Shared::RoundTile{staging}.store(map, column, tile.key_head,
                                                    Config::Layout::after({tile.key.x, y}, row));
        });
      }
    };
    for_all_query_tiles(tile, [&](int head, int position, int left) {
      if (ends(left)) {
        store_key_gradient(arguments.grad_key.map, 0, Shared::key_rounds, tile.grad_key_y);
        store_key_gradient(arguments.grad_value.map, Shared::key_rounds, Shared::value_rounds, tile.grad_value_y);
      }
      if constexpr (!Config::computes_grad_query) return;
      const GradQuery is = grad_query_of<Config>(tile, position);
      const int row = tile.queries.row_offset(position, Config::tile_queries);
      const auto row_of = [&](int warpgroup) { return row + (Shared::splits_queries ? warpgroup * Shared::rows : 0); };
      const auto accumulators = [&](int warpgroup) {
        return accumulators_at<Config>(arguments, head, Shared::splits_queries ? 0 : warpgroup,
                                       tile.grad_query + row_of(warpgroup));
      };
      const auto bytes_of_accumulators = [&](int warpgroup) {
        const int rows = min(Shared::rows, tile.length_q - tile.queries.first_row - row_of(warpgroup));
        return static_cast<unsigned>(max(rows, 0) * Shared::grad_query_row_bytes);
      };
      if constexpr (Config::has_dq_semaphores) {
        // The CTA that this thread waits for may itself wait for the previous request of this CTA.
        if (!is_complete(shared.semaphore_requests().acquired, step)) {
          tma_store_wait();
          end_request();
        }
        consumer_wait(shared.semaphore_requests().acquired, step);
      }
      if (is == GradQuery::last_writer) {
        wait_for_accumulator_empty(shared);
#pragma unroll 1
        for (int warpgroup = 0; warpgroup < Shared::warpgroups; ++warpgroup) {
          const Barrier have_come = shared.accumulator_full(warpgroup);
          const unsigned bytes = bytes_of_accumulators(warpgroup);
          have_come.arrive_and_expect(static_cast<int>(bytes));
          if (bytes != 0) bulk_load(shared.staging(warpgroup), accumulators(warpgroup), bytes, have_come.address);
        }
      }
      if constexpr (Shared::adds_grad_output) {
        if (begins_grad_query(is)) {
          wait_for_accumulator_empty(shared);
#pragma unroll 1
          for (int warpgroup = 0; warpgroup < Shared::warpgroups; ++warpgroup) {
            const int column = Shared::splits_queries ? 0 : warpgroup * Shared::grad_query_columns;
            const bool exists = column < Config::head_dim && bytes_of_accumulators(warpgroup) != 0;
            const Barrier has_come = shared.accumulator_full(warpgroup);
            has_come.arrive_and_expect(exists ? Shared::rows * Shared::GradQueryTile::row_bytes : 0);
            if (!exists) continue;
            tma_load(shared.staging(warpgroup), arguments.addend.map, has_come.address, column, head,
                     Config::Layout::after({tile.query.x, tile.grad_output_y}, row_of(warpgroup)));
          }
        }
      }
      store_staged(
          number + static_cast<int>(ends(left)), 0, true,
          [&](int warpgroup, unsigned staging) {
            const int column = Shared::splits_queries ? 0 : warpgroup * Shared::grad_query_columns;
            if (Shared::splits_queries && bytes_of_accumulators(warpgroup) == 0)
              return;  // these rows are beyond the sequence
            if (is == GradQuery::accumulated) {
              bulk_reduce_add(accumulators(warpgroup), staging, bytes_of_accumulators(warpgroup));
            } else if (is == GradQuery::first_writer) {
              bulk_store(accumulators(warpgroup), staging, bytes_of_accumulators(warpgroup));
            } else if (column < Config::head_dim) {
              const TensorMap& map = arguments.grad_query.map;
              const MapOrigin origin = Config::Layout::after({tile.query.x, tile.grad_query_y}, row_of(warpgroup));
              if (is == GradQuery::added) {
                // dQ of the previous key tile is in global memory.
                if (left == tile.steps) tma_store_wait();
                tma_reduce_add(map, staging, column, head, origin);
              } else {
                tma_store(map, staging, column, head, origin);
              }
            }
          });
      ++step;
    });
    if (ends(1)) ++key_tiles;
  });
  tma_store_wait();
  if constexpr (Config::has_dq_semaphores) end_request();
}

}  // namespace gdpa::hopper
