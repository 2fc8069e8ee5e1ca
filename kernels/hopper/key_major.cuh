// What backward and wide_backward share: in both kernels, a CTA owns key tiles. This file has the layout of shared
// memory and the queue of key tiles. The tile scheduler warp of each CTA fills the queue. It takes the next slot of the
// table that key_schedule.cuh has written, until no slot is left.
//
// The tile scheduler of forward needs no table, since it finds its tiles itself. The warp of backward has 24 registers,
// too few for the search.
#pragma once

#include "hopper/key_tile.cuh"
#include "hopper/tile.cuh"
#include "pipeline/barrier.cuh"
#include "pipeline/warpgroup.cuh"

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

/// The memory of the operands, of dS and of the queue, then the barriers. A kernel has `own_bytes` of its own at
/// `own_at`, and more from `end` on.
template <class Config, int key_stages_, int own_bytes>
struct KeyMajorStorage {
  using Queue = KeyTileQueue<typename Config::Mask>;
  static constexpr int warpgroups = 2;  ///< consumers
  static constexpr int threads = (warpgroups + 1) * warpgroup_threads;
  static constexpr int rows = warpgroup_rows;  ///< of a product
  static constexpr bool computes_ds = Config::computes_grad_query || Config::computes_grad_key;
  // A CTA has 65,536 registers; a thread has a multiple of 8.
  static constexpr int consumer_registers = 240;
  static constexpr int producer_registers = 24;
  static constexpr int key_stages = key_stages_;
  static constexpr int score_stages = 2;

  using QueryTile = SwizzledTile<Config::tile_queries, Config::head_dim>;
  using GradOutputTile = SwizzledTile<Config::tile_queries, Config::head_dim_v>;
  using KeysTile = SwizzledTile<Config::tile_keys, Config::head_dim>;
  using ValuesTile = SwizzledTile<Config::tile_keys, Config::head_dim_v>;
  using ScoresTile = SwizzledTile<Config::tile_keys, Config::tile_queries>;  ///< rows are keys
  using StagePipeline = Pipeline<Config::stages>;

  static constexpr int values_at = key_stages * KeysTile::bytes;
  static constexpr int queries_at = values_at + ValuesTile::bytes;
  static constexpr int grad_outputs_at = queries_at + Config::stages * QueryTile::bytes;
  static constexpr int scores_at = grad_outputs_at + Config::stages * GradOutputTile::bytes;
  static constexpr int own_at = scores_at + score_stages * ScoresTile::bytes;
  static constexpr int queue_at = own_at + own_bytes;
  static constexpr int due_barrier_at = queue_at + Queue::bytes;
  static constexpr int query_barriers_at = due_barrier_at + Barrier::bytes;
  static constexpr int grad_output_barriers_at = query_barriers_at + StagePipeline::bytes;
  static constexpr int key_barriers_at = grad_output_barriers_at + StagePipeline::bytes;
  static constexpr int value_barriers_at = key_barriers_at + Pipeline<key_stages>::bytes;
  static constexpr int score_barriers_at = value_barriers_at + Pipeline<1>::bytes;
  static constexpr int end = score_barriers_at + Pipeline<score_stages>::bytes;

  unsigned char* memory;

  __device__ unsigned at(int offset) const { return shared_address(memory) + static_cast<unsigned>(offset); }
  __device__ KeysTile keys(int number) const { return KeysTile{at(0)}.stage(stage_of<key_stages>(number)); }
  __device__ ValuesTile values() const { return {at(values_at)}; }
  __device__ QueryTile queries(int step) const {
    return QueryTile{at(queries_at)}.stage(stage_of<Config::stages>(step));
  }
  __device__ GradOutputTile grad_outputs(int step) const {
    return GradOutputTile{at(grad_outputs_at)}.stage(stage_of<Config::stages>(step));
  }
  __device__ ScoresTile ds(int step) const { return ScoresTile{at(scores_at)}.stage(stage_of<score_stages>(step)); }

  __device__ Queue tiles() const { return Queue::at(memory + queue_at); }
  __device__ Barrier next_key_tile_due() const { return {at(due_barrier_at)}; }
  __device__ StagePipeline query_pipeline() const { return {at(query_barriers_at)}; }
  __device__ StagePipeline grad_output_pipeline() const { return {at(grad_output_barriers_at)}; }
  __device__ Pipeline<key_stages> key_pipeline() const { return {at(key_barriers_at)}; }
  __device__ Pipeline<1> value_pipeline() const { return {at(value_barriers_at)}; }
  __device__ Pipeline<score_stages> ds_pipeline() const { return {at(score_barriers_at)}; }
};

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

}  // namespace gdpa::hopper
