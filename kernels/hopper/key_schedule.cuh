// The tile scheduler of backward. A small kernel finds, for each slot of work.cuh, the key tile and the query tiles
// that attend to it, and writes their description into a table. Keys without a query have zero gradients, which this
// kernel writes. The tile scheduler warp of each CTA of backward takes slots from the table, in order, until none is
// left. The semaphore thread acquires and increments the dQ semaphores of its key tiles (dq_semaphore.cuh).
//
// The tile scheduler of forward needs no table, since it finds its tiles itself. The warp of backward has 24 registers,
// too few for the search.
#pragma once

#include "common/parameter_sum.cuh"
#include "common/sequence.cuh"
#include "common/work.cuh"
#include "hopper/arguments.cuh"
#include "hopper/dq_semaphore.cuh"
#include "hopper/grad_query_accumulators.cuh"
#include "hopper/head_groups.cuh"
#include "hopper/key_tile_table.cuh"
#include "hopper/rows.cuh"
#include "pipeline/dependent_launch.cuh"
#include "pipeline/queue.cuh"
#include "pipeline/tile_scheduler.cuh"

namespace gdpa::hopper {

/// Three slots: a key tile with dQ still pending, the current one, and the next one. With more, a CTA could end long
/// after the others.
template <class Mask>
using KeyTileQueue = Queue<KeyTile<Mask>, 3>;
/// One lane writes each word of an item. The words of QuerySegment come first.
template <class Mask>
constexpr int key_tile_words = sizeof(KeyTile<Mask>) / sizeof(int);
template <class Mask>
constexpr int segment_words = sizeof(QuerySegment<Mask>) / sizeof(int);

/// The segments of the key tiles of all lanes. By a warp.
template <class Config>
__device__ Segments find_segments_of_lanes(const BackwardArguments& arguments, const Work& work) {
  Segments segments{};
  for (unsigned left = __ballot_sync(0xffffffffu, work.exists); left != 0; left &= left - 1) {
    const int source = __ffs(static_cast<int>(left)) - 1;
    const auto of_source = [source](auto value) { return __shfl_sync(0xffffffffu, value, source); };
    Work tile{};
    tile.batch_begin = of_source(work.batch_begin);
    tile.batch_end = of_source(work.batch_end);
    tile.head = of_source(work.head);
    tile.tile = of_source(work.tile);
    tile.keys.count = of_source(work.keys.count);
    const Segments found = find_segments<Config>(arguments, tile);
    if (lane_index() == source) segments = found;
  }
  return segments;
}

template <int columns>
struct Columns {
  static constexpr int value = columns;
};

template <class Config>
constexpr int key_schedule_threads = 256;
template <class Config>
constexpr int key_schedule_shared_bytes = 0;

/// Clears the sums of the gradients of tensors to which the first pass has added. They are contiguous. The second pass
/// overwrites stored terms.
template <class Config>
__device__ void clear_parameter_sums(const Params& params) {
  for (int tensor = 0; tensor < most_parameters; ++tensor) {
    if ((Config::cleared_parameters >> tensor & 1) == 0) continue;
    const BoundTensor& gradient = params.grad_parameters[tensor];
    const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, threads = int64_t{gridDim.x} * blockDim.x;
    if (auto* const borders = static_cast<FloatSum*>(params.parameter_sums.borders); borders != nullptr) {
      const auto count = params.parameter_sums.copy_bytes / static_cast<int64_t>(sizeof(FloatSum));
      for (int64_t i = first; i < count; i += threads) borders[i] = {};
      continue;
    }
    int64_t count = 1;
    for (int axis = 0; axis < gradient.rank; ++axis) count *= gradient.sizes[axis];
    for (int copy = 0; copy < params.parameter_sums.copies; ++copy) {
      auto* const sums = copy_of_sums<typename Config::Sum>(gradient.data, params.parameter_sums, copy);
      for (int64_t i = first; i < count; i += threads) sums[i] = {};
    }
  }
}

/// Initialises the semaphores of a batch that shares the keys: all query tiles attend to all key tiles.
template <class Config>
__device__ void initialise_semaphores(const BackwardArguments& arguments) {
  const Params& params = arguments.common.params;
  const int value = DqSemaphore::initial(static_cast<int>(params.keys.length - 1) / Config::tile_keys);
  const int64_t count = params.heads_q * int64_t{arguments.semaphores_per_head},
                threads = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += threads) {
    arguments.dq_semaphores[i] = value;
  }
}

/// The kernel that writes the table, one lane for each slot. It also prepares rows of dQ: zeros, or the addend,
/// for rows without keys, and accumulators. It runs again before a second pass.
///
/// With dQ semaphores, the table was cleared before, because tiles are not in their own slots then.
///
/// Launch: grid any number of CTAs, best slots or query tiles / 64, and if it clears accumulators, as many as
///         round_grad_query; block key_schedule_threads<Config>; no shared memory.
template <class Config>
__device__ void key_schedule(const BackwardArguments& arguments) {
  using Gradients = KeyGradients<Config>;
  using Storage = typename Gradients::Element::Storage;
  using Layout = typename Config::Layout;
  using Mask = typename Config::Mask;
  constexpr unsigned warps = key_schedule_threads<Config> / 32;
  const Params& params = arguments.common.params;
  const auto owner = owner_of_keys<Layout>(arguments.common, Config::tile_keys,
                                           Config::keys_shared ? arguments.common.splits : params.batch);
  allow_next_kernel();
  const unsigned slots = arguments.slots;  // of the table. Wrong lengths or gaps may leave slots without work.
  if (Config::pass == Pass::second) {
    if (*arguments.non_finite == 0) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) *arguments.slots_taken = 0;
    if constexpr (Config::cleared_parameters != 0) clear_parameter_sums<Config>(params);
  }
  if (Config::has_dq_semaphores) check_offsets_rise<Layout>(arguments);
  const auto prepare = [&](const RowsToPrepare& left) {
    if (left.key_tiles == 0) {
      using Element = typename Config::Element;
      auto* const gradient = static_cast<typename Element::Storage*>(params.grad_query.data) + left.offset;
      const typename Element::Storage* addend = nullptr;
      if constexpr (Config::Epilogue::has_addend) {
        addend = static_cast<const typename Element::Storage*>(params.grad_output.data) +
                 offset_of_counted_row<Config>(params, params.grad_output, left);
      }
      fill_rows<Element, Config::head_dim>(gradient, params.grad_query.row_stride, left.rows, addend,
                                           params.grad_output.row_stride);
      return;
    }
    if (!Config::has_dq_semaphores) {
      clear_accumulators<Config>(arguments, left);
    } else if (!Config::keys_shared && lane_index() == 0) {
      *semaphore_of(arguments, left.head, left.semaphore) = DqSemaphore::initial(left.last_number);
    }
  };
  if constexpr (Config::has_dq_semaphores && Config::keys_shared) initialise_semaphores<Config>(arguments);
  if (Config::computes_grad_query && arguments.prepares_grad_query)
    for_all_rows_to_prepare<Config, warps>(arguments, prepare);
  const SlotsOfWarp own = slots_of_warp<warps>(slots);
  for (unsigned first = own.first; first < slots; first += own.step) {
    look_up_slots(arguments, owner, false, first, own.at_once, [&](Work work) {
      work.queries = queries_that_meet<Config>(arguments, work);
      const unsigned slot = first + static_cast<unsigned>(lane_index());
      const int first_key = work.tile * Config::tile_keys;
      typename Mask::Tiles queries{};
      Segments segments{};
      if constexpr (Layout::has_batch_map) {
        segments = find_segments_of_lanes<Config>(arguments, work);
      } else if (work.exists) {
        queries = Mask::of(params, pair_of_keys(params, work))
                      .query_tiles(first_key, Config::tile_keys, Config::tile_queries);
      }
      const bool has_queries = Layout::has_batch_map ? segments.count > 0 : queries.size() > 0;
      const auto describe = [&](KeyTile<Mask>& tile) {
        describe_keys<Config>(tile, arguments, owner, work);
        if constexpr (Layout::has_batch_map) {
          static_cast<QuerySegment<Mask>&>(tile) = {segments.count, segments.first};
        } else {
          describe_segment<Config>(tile, arguments, pair_of_keys(params, work), work.queries, first_key, queries);
        }
      };
      if constexpr (Config::has_dq_semaphores) {
        const auto in_head_group = [&] {
          return static_cast<unsigned>(slot_in_head_group<Mask>(
              arguments.common, arguments.whole_keys, arguments.heads_per_group, owner, work, Config::by_heads));
        };
        const unsigned slot_of_tile = has_queries ? in_head_group() : slots;
        if (slot_of_tile < slots) describe(key_tile_table<Config>(arguments)[slot_of_tile]);
      } else if (slot < min(first + own.at_once, slots)) {
        KeyTile<Mask>& tile = key_tile_table<Config>(arguments)[slot];
        if (has_queries) {
          describe(tile);
        } else {
          tile = KeyTile<Mask>{};
        }
      }
      const auto offset_in = [&](const Operand& operand) {
        return Layout::offset_of(operand, work.keys, work.entry, first_key, work.head);
      };
      const int64_t key_offset = offset_in(Gradients::of_key(arguments));
      const int64_t value_offset = offset_in(Gradients::of_value(arguments));
      const int rows = min(Config::tile_keys, work.keys.count - first_key);
      const bool has_zeros = work.exists && !has_queries;
      for (unsigned left = __ballot_sync(0xffffffffu, has_zeros); left != 0; left &= left - 1) {
        const int source = __ffs(static_cast<int>(left)) - 1;
        const auto of_source = [source](auto value) { return __shfl_sync(0xffffffffu, value, source); };
        const auto write = [&](const Operand& operand, int64_t offset, auto columns) {
          fill_rows<typename Gradients::Element, columns.value>(static_cast<Storage*>(operand.data) + offset,
                                                                      operand.row_stride, of_source(rows));
          __syncwarp();
        };
        if constexpr (Config::computes_grad_key) {
          write(Gradients::of_key(arguments), of_source(key_offset), Columns<Gradients::columns>{});
        }
        if constexpr (Config::computes_grad_value) {
          write(Gradients::of_value(arguments), of_source(value_offset), Columns<Gradients::columns_v>{});
        }
      }
    });
  }
}

/// The next key tile is taken this many steps before the end of the current one. They take as long as the next key tile
/// needs from the table until K is in shared memory.
constexpr int steps_before_next = 3;

/// Called by the producer thread of Q in each step: signals the tile scheduler. A short key tile needs no signal.
template <class Mask>
__device__ void signal_next_key_tile(const Barrier& next_key_tile_due, const KeyTile<Mask>& tile, int left) {
  if (left == steps_before_next && tile.steps > steps_before_next) next_key_tile_due.arrive();
}

/// The tile scheduler warp: takes slots from a counter that all CTAs share, and fills the queue. A tile without steps
/// ends the queue. A slot is taken late, so that no CTA holds work that others could do or wait for. After a short key
/// tile it is taken as soon as the queue has room. With a batch map, a slot has an item for each of its segments.
template <class Config>
__device__ void schedule_key_tiles(const BackwardArguments& arguments, const KeyTileQueue<typename Config::Mask>& queue,
                                   const Barrier& next_key_tile_due) {
  using Tile = KeyTile<typename Config::Mask>;
  constexpr int words = key_tile_words<typename Config::Mask>, flags_word = segment_words<typename Config::Mask>;
  static_assert(words <= 32, "one lane for each word");
  const int lane = lane_index();
  unsigned slot = 0;
  bool follows_previous = false;  // the previous slot
  bool is_late = false;
  unsigned parity = 0;  // of next_key_tile_due
  int scheduled = 0;
  const auto wait_for_room = [&] {
    queue.producer_acquire(scheduled);
    if (is_late) {
      next_key_tile_due.wait(parity);
      parity ^= 1;
      is_late = false;
    }
  };
  const auto schedule = [&](int word, int steps) {
    is_late = steps > steps_before_next;
    if (lane < words) {
      reinterpret_cast<int*>(&queue[scheduled])[lane] = word;
      queue.producer_commit(scheduled);
    }
    ++scheduled;
  };
  for (;;) {
    wait_for_room();
    if (follows_previous) {
      ++slot;
    } else {
      if (lane == 0) slot = atomicAdd(arguments.slots_taken, 1u);
      slot = __shfl_sync(0xffffffffu, slot, 0);
    }
    const bool ends = slot >= arguments.slots;
    int word = 0;
    if (!ends && lane < words) word = reinterpret_cast<const int*>(key_tile_table<Config>(arguments) + slot)[lane];
    const int steps = __shfl_sync(0xffffffffu, word, 0);
    const int flags = __shfl_sync(0xffffffffu, word, flags_word);
    const bool is_others = steps == 0 || ((flags & Tile::took_previous) != 0 && !follows_previous);
    if (is_others && !ends) {
      follows_previous = false;  // falling offsets, an error of the caller, can mark a slot without a tile
      continue;
    }
    follows_previous = (flags & Tile::takes_next) != 0;
    if (Config::Layout::has_batch_map && !ends) {
      const int first = __shfl_sync(0xffffffffu, word, 1);
      for (int segment = 0; segment < steps; ++segment) {
        if (segment > 0) wait_for_room();
        int item = word;
        if (lane < flags_word) {
          item = reinterpret_cast<const int*>(segment_table<Config>(arguments) + first + segment)[lane];
        } else if (lane == flags_word) {
          item |= (segment > 0 ? Tile::follows : 0) | (segment + 1 < steps ? Tile::continues : 0);
        }
        schedule(item, __shfl_sync(0xffffffffu, item, 0));
      }
    } else {
      schedule(word, steps);
    }
    if (ends) return;
  }
}

/// Calls visit(tile, number) for each key tile. By one thread, which is a consumer of the queue.
template <class Queue, class Visit>
__device__ void for_all_key_tiles(const Queue& queue, Visit visit) {
  for (int number = 0;; ++number) {
    const auto& tile = queue.consumer_wait(number);
    if (tile.steps == 0) return;
    visit(tile, number);
    queue.consumer_release(static_cast<int>(launder(number)));  // otherwise its barrier occupies a register
  }
}

/// Whether CTAs of other key tiles add to dQ of the query tile at a position in the list of a key tile.
template <class Mask>
__device__ bool has_other_writers(const KeyTile<Mask>& tile, int position) {
  return !tile.is(tile.whole) && !(tile.writers.is_first(position) && tile.writers.is_last(position));
}

/// The destination of dQ of the query tile at a position in the list of a key tile.
template <class Config, class Mask>
__device__ GradQuery grad_query_of(const KeyTile<Mask>& tile, int position) {
  if (Config::has_dq_semaphores) {
    return tile.destination(tile.writers.is_first(position), tile.writers.is_last(position));
  }
  if (!tile.is(tile.whole)) return GradQuery::accumulated;
  return tile.first_key == 0 ? GradQuery::stored : GradQuery::added;
}

/// Calls visit(head, position in the list, steps left including this one) for each query tile of a key tile.
template <class Mask, class Visit>
__device__ void for_all_query_tiles(const KeyTile<Mask>& tile, Visit visit) {
  int head = tile.first_head, position = 0;
#pragma unroll 1
  for (int left = tile.steps; left > 0; --left) {
    visit(head, position, left);
    if (++position == tile.queries.size()) {
      position = 0;
      ++head;
    }
  }
}

/// The semaphore thread: waits for the semaphore of a step while dQ is still being computed, and increments it when dQ
/// has been added. Each takes a round trip to global memory, for which the store thread has no time.
template <class Config>
__device__ void update_semaphores(const BackwardArguments& arguments, const KeyTileQueue<typename Config::Mask>& tiles,
                                  const SemaphoreRequests& requests) {
  int acquired_count = 0, incremented_count = 0;
  const auto increment_next = [&] {
    const SemaphoreRequest& request = requests[incremented_count];
    if (request.semaphore != nullptr) add_released(request.semaphore, DqSemaphore::increment(request.is));
    ++incremented_count;
  };
  const auto increment_if_added = [&] {
    if (incremented_count < acquired_count && is_complete(requests.added, incremented_count)) increment_next();
  };
  for_all_key_tiles(tiles, [&](const auto& tile, int) {
    for_all_query_tiles(tile, [&](int head, int position, int) {
      if (acquired_count - incremented_count == SemaphoreRequests::most) {
        consumer_wait(requests.added, incremented_count);
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
      requests.acquired[stage_of<SemaphoreRequests::most>(acquired_count)].arrive();
      ++acquired_count;
      increment_if_added();
    });
  });
  while (incremented_count < acquired_count) {
    consumer_wait(requests.added, incremented_count);
    increment_next();
  }
}

}  // namespace gdpa::hopper
