// Backward: the threads of the producer warpgroup that load operands by TMA, that store gradients by TMA, and that
// acquire and increment the dQ semaphores.
#pragma once

#include "hopper/backward_storage.cuh"
#include "hopper/grad_query_accumulators.cuh"

namespace gdpa::hopper {

/// Loads K, V, Q and dO, and writes the description of each step.
template <class Config>
__device__ void load_operands(const BackwardArguments& arguments, const BackwardStorage<Config>& shared) {
  using Shared = BackwardStorage<Config>;
  int step = 0, odd = 0, key_tiles = 0;
  for_all_key_tiles(shared.tiles(), [&](const auto& tile, int item) {
    const bool follows = Shared::has_batch_map && tile.is(tile.follows);
    const bool continues = Shared::has_batch_map && tile.is(tile.continues);
    const int number = Shared::has_batch_map ? key_tiles : item;
    if (!follows) {
      shared.key_pipeline().producer_acquire(number);
      shared.keys(number).fill(shared.key_pipeline().full_of(number), arguments.key.map, tile.key_head, tile.key);
    }
    for_all_query_tiles(tile, [&](int head, int position, int left) {
      const bool begins = left == tile.steps && !follows;
      signal_next_key_tile(shared.next_key_tile_due(), tile, left);
      shared.query_pipeline().producer_acquire(step);
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
      shared.queries(step).fill(shared.query_pipeline().full_of(step), arguments.query.map, head,
                                Config::Layout::after(tile.query, row));
      shared.grad_output_pipeline().producer_acquire(step);
      shared.grad_outputs(step).fill(shared.grad_output_pipeline().full_of(step), arguments.grad_output.map, head,
                                     Config::Layout::after({tile.query.x, tile.grad_output_y}, row));
      // V has one stage. It is released when the last step of the previous key tile has begun: later than Q and dO.
      if (Shared::computes_ds && begins) {
        shared.value_pipeline().producer_acquire(number);
        shared.values().fill(shared.value_pipeline().full_of(number), arguments.value.map, tile.key_head,
                             {tile.key.x, tile.value_y});
      }
      ++step;
    });
    if (!continues) ++key_tiles;
  });
  shared.query_pipeline().producer_acquire(step);
  shared.step(step) = {Step::only, 0, 0, 0};
  shared.query_pipeline().full_of(step).arrive();
  shared.grad_output_pipeline().producer_acquire(step);
  shared.grad_output_pipeline().full_of(step).arrive();
}

/// Waits until the consumers have read the previous accumulators, or dO, from the staging buffers. They have, since dQ
/// has left from the same buffers. The wait is for racecheck, which does not see this.
template <class Config>
__device__ __forceinline__ void wait_for_accumulator_empty(const BackwardStorage<Config>& shared) {
  const unsigned parity = shared.accumulator_phase() ^ 1;
#pragma unroll
  for (int warpgroup = 0; warpgroup < BackwardStorage<Config>::warpgroups; ++warpgroup) {
    shared.accumulator_pipeline(warpgroup).empty(0).wait(parity);
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
    shared.semaphore_requests().consumer_release(requests_done);
    ++requests_done;
  };
  const auto store_staged = [&](int tiles, int round, bool is_step, auto start) {
    const int warpgroups = is_step ? Shared::warpgroups : Shared::key_warpgroups;
#pragma unroll
    for (int warpgroup = 0; warpgroup < warpgroups; ++warpgroup) {
      shared.staging_pipeline(warpgroup).consumer_wait(Shared::times_staged(warpgroup, step, tiles) + round);
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
      shared.staging_pipeline(warpgroup).consumer_release(0);
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
        if (!shared.semaphore_requests().is_filled(step)) {
          tma_store_wait();
          end_request();
        }
        shared.semaphore_requests().consumer_wait(step);
      }
      const auto fill_staging = [&](auto bytes_of, auto load) {
        wait_for_accumulator_empty(shared);
#pragma unroll 1
        for (int warpgroup = 0; warpgroup < Shared::warpgroups; ++warpgroup) {
          const Barrier have_come = shared.accumulator_pipeline(warpgroup).full(0);
          const unsigned bytes = bytes_of(warpgroup);
          have_come.arrive_and_expect(static_cast<int>(bytes));
          if (bytes != 0) load(warpgroup, shared.staging(warpgroup), bytes, have_come.address);
        }
      };
      const auto column_of_staging = [](int warpgroup) {
        return Shared::splits_queries ? 0 : warpgroup * Shared::grad_query_columns;
      };
      if (is == GradQuery::last_writer) {
        fill_staging(bytes_of_accumulators, [&](int warpgroup, unsigned staging, unsigned bytes, unsigned barrier) {
          bulk_load(staging, accumulators(warpgroup), bytes, barrier);
        });
      }
      if (Shared::adds_grad_output && begins_grad_query(is)) {
        const auto bytes_of_addend = [&](int warpgroup) {
          const bool exists = column_of_staging(warpgroup) < Config::head_dim && bytes_of_accumulators(warpgroup) != 0;
          return static_cast<unsigned>(exists ? Shared::rows * Shared::GradQueryTile::row_bytes : 0);
        };
        fill_staging(bytes_of_addend, [&](int warpgroup, unsigned staging, unsigned, unsigned barrier) {
          tma_load(staging, arguments.addend.map, barrier, column_of_staging(warpgroup), head,
                   Config::Layout::after({tile.query.x, tile.grad_output_y}, row_of(warpgroup)));
        });
      }
      store_staged(number + static_cast<int>(ends(left)), 0, true, [&](int warpgroup, unsigned staging) {
        const int column = column_of_staging(warpgroup);
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

/// Whether CTAs of other key tiles add to dQ of the query tile at a position in the list of a key tile.
template <class Mask>
__device__ bool has_other_writers(const KeyTile<Mask>& tile, int position) {
  return !tile.is(tile.whole) && !(tile.writers.is_first(position) && tile.writers.is_last(position));
}

/// The semaphore thread: waits for the semaphore of a step while dQ is still being computed, and increments it when dQ
/// has been added. Each takes a round trip to global memory, for which the store thread has no time.
template <class Config>
__device__ void update_semaphores(const BackwardArguments& arguments, const KeyTileQueue<typename Config::Mask>& tiles,
                                  const SemaphoreRequests& requests) {
  constexpr int most = SemaphoreRequests::slots;
  int acquired_count = 0, incremented_count = 0;
  const auto increment_next = [&] {
    const SemaphoreRequest& request = requests[incremented_count];
    if (request.semaphore != nullptr) add_released(request.semaphore, DqSemaphore::increment(request.is));
    ++incremented_count;
  };
  const auto increment_if_added = [&] {
    if (incremented_count < acquired_count && requests.is_released(incremented_count + most)) increment_next();
  };
  for_all_key_tiles(tiles, [&](const auto& tile, int) {
    for_all_query_tiles(tile, [&](int head, int position, int) {
      if (acquired_count - incremented_count == most) {
        requests.producer_acquire(acquired_count);
        increment_next();
      }
      const GradQuery is = grad_query_of<Config>(tile, position);
      int* semaphore = nullptr;  // null: no other CTA adds to dQ
      if (has_other_writers(tile, position)) {
        const int row = tile.queries.row_offset(position, Config::tile_queries);
        semaphore = semaphore_of(arguments, head, tile.semaphore + row / Config::tile_queries);
        const int number = tile.writers.number_of(position, tile.first_key / Config::tile_keys);
        const int required = DqSemaphore::required<Config>(is, number);
        while (!has_reached(arguments, semaphore, required)) increment_if_added();
      }
      requests[acquired_count].semaphore = semaphore;
      requests[acquired_count].is = is;
      requests.producer_commit(acquired_count);
      ++acquired_count;
      increment_if_added();
    });
  });
  while (incremented_count < acquired_count) {
    requests.producer_acquire(incremented_count + most);
    increment_next();
  }
}

}  // namespace gdpa::hopper
