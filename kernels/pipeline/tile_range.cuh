// The query tiles of a CTA. Each tile has an index: by batch entry, then by head, then by its position in the head.
// Every index has a tile. With the strided order, all CTAs therefore get equally many tiles for any lengths.
//
// With many keys, CTAs that run at the same time should read the same keys. Each CTA then takes one of gridDim indices
// (strided), or the next index that no CTA has taken (dynamic).
//
// If the keys fit into the stages, a CTA should have the query tiles of a head one after the other. If there are many
// heads, it takes the next indices that no CTA has taken, as many as a head has (dynamic). All CTAs then read tokens
// that are near each other, which memory serves faster. With fewer heads, and if the batch shares the keys, each CTA
// takes a contiguous range of indices. All ranges have the same cost, measured by the keys that their tiles attend to.
// If a head has one query tile, so that no other tile reads its keys, the order is chosen in the same way.
//
// All threads of the CTA find its range before their roles diverge: a contiguous range depends on all lengths of a
// jagged batch, and one warp would take tens of microseconds to read them. The tile scheduler warp then finds the
// tiles, one for each lane.
#pragma once

#include "common/lanes.cuh"
#include "common/work.cuh"
#include "pipeline/arguments.cuh"

namespace gdpa::pipeline {

/// 32 entries of a jagged batch, one for each lane.
struct Entries {
  int first;
  unsigned tiles_before;  ///< tiles of all entries before these
  unsigned tiles_up_to;   ///< the same, including the entries up to this lane's
};

/// The tiles of a CTA. In shared memory, because each pass over the tiles reads it.
struct TileRange {
  int entry;              ///< of a jagged batch: the entry where the search for tiles begins
  unsigned tiles_before;  ///< tiles of all entries before it
  unsigned begin;         ///< the first tile: its number in the CTA, or the index in a contiguous range
  unsigned end;           ///< the end of the indices
};

/// A number of tiles, and their cost.
struct WorkTotals {
  unsigned tiles = 0;
  unsigned long long cost = 0;

  __device__ WorkTotals operator+(const WorkTotals& other) const { return {tiles + other.tiles, cost + other.cost}; }
  __device__ WorkTotals operator-(const WorkTotals& other) const { return {tiles - other.tiles, cost - other.cost}; }
};

/// The tiles of the batch. Counts have 32 bits, since registers are few, and no memory holds more tiles.
template <class Config>
struct Batch {
  const QueryMajorArguments& arguments;
  Owner<typename Config::Layout> owner;

  __device__ explicit Batch(const QueryMajorArguments& arguments_)
      : arguments(arguments_),
        owner{arguments.common.params.queries, arguments.common.packed_rows_q, arguments.common.params.heads_q,
              Config::tile_queries, arguments.common.params.batch} {}

  /// The rows of an entry. Two entries after the batch hold the rows without a sequence, which attend to no key: first
  /// the rows after the last offset, then the rows before the first one.
  __device__ Rows queries_of(int64_t b) const {
    if (b < owner.entries) return gdpa::queries_of<typename Config::Layout>(arguments.common, b);
    return b == owner.entries ? owner.last_rows() : owner.first_rows();
  }
  __device__ int entries_with_unused_rows() const { return static_cast<int>(owner.entries) + 2; }

  __device__ unsigned tiles_of(int64_t b) const {
    if (b >= entries_with_unused_rows()) return 0;
    const auto rows = static_cast<unsigned>(queries_of(b).count);
    return (rows + Config::tile_queries - 1) / Config::tile_queries * static_cast<unsigned>(owner.heads);
  }

  /// The cost of a query tile of the entry: its key tiles, and one more for Q, O and the queue.
  __device__ unsigned cost_of(int64_t b) const {
    if (b >= owner.entries) return 1;
    const auto rows = static_cast<unsigned>(keys_of<typename Config::Layout>(arguments.common, b).count);
    return (rows + Config::tile_keys - 1) / Config::tile_keys + 1;
  }

  __device__ WorkTotals totals_of(int64_t b) const {
    const unsigned tiles = tiles_of(b);
    return {tiles, static_cast<unsigned long long>(tiles) * cost_of(b)};
  }

  __device__ Entries entries_from(int first, unsigned tiles_before) const {
    return {first, tiles_before, tiles_before + sum_up_to_lane(tiles_of(first + lane_index()))};
  }
  __device__ bool are_last(const Entries& entries) const { return entries.first + 32 >= entries_with_unused_rows(); }
  __device__ Entries after(const Entries& entries) const {
    return entries_from(entries.first + 32, __shfl_sync(0xffffffffu, entries.tiles_up_to, 31));
  }

  /// The work of the tile of each lane, if the lane wants one and the tile exists. The search begins at `entries`,
  /// which then becomes the entries of the last tile found.
  __device__ Work work_of(Entries& entries, unsigned index, bool wanted) const {
    Work work{};
    for (;;) {
      int lane = 0;  // the first lane with index < tiles_up_to
#pragma unroll
      for (int half = 16; half > 0; half /= 2) {
        if (__shfl_sync(0xffffffffu, entries.tiles_up_to, lane + half - 1) <= index) lane += half;
      }
      const unsigned up_to = __shfl_sync(0xffffffffu, entries.tiles_up_to, lane);
      unsigned before = __shfl_sync(0xffffffffu, entries.tiles_up_to, max(lane - 1, 0));
      if (lane == 0) before = entries.tiles_before;
      if (wanted && index < up_to) {
        const int b = entries.first + lane;
        const auto tiles = static_cast<int>((up_to - before) / static_cast<unsigned>(owner.heads));
        const auto tile_of_entry = static_cast<int>(index - before);
        work.batch_begin = b;
        work.tile = tile_of_entry % tiles;
        work.head = tile_of_entry / tiles;
        const Params& params = arguments.common.params;
        work.key_head = static_cast<int>(divide_counts(work.head, divide_counts(params.heads_q, params.heads_k)));
        work.queries = queries_of(b);
        work.keys = keys_of<typename Config::Layout>(arguments.common, b);
        work.exists = true;
        wanted = false;
      }
      if (__ballot_sync(0xffffffffu, wanted) == 0 || are_last(entries)) return work;
      entries = after(entries);
    }
  }
};

/// Finds a contiguous range of the tiles of a jagged batch with the same cost as the ranges of the other CTAs. By all
/// `threads` of the CTA; each thread adds up contiguous entries. `totals_of_warps` has one element for each warp. A
/// barrier must follow.
template <class Config, int threads>
__device__ void find_contiguous_range(const Batch<Config>& batch, WorkTotals* totals_of_warps, TileRange& tile_range) {
  constexpr int warps = threads / 32;
  const auto thread = static_cast<int>(threadIdx.x);
  const int entries = batch.entries_with_unused_rows();
  const int each = (entries + threads - 1) / threads;
  const int first = min(thread * each, entries), last = min(first + each, entries);
  WorkTotals own;
#pragma unroll 1
  for (int b = first; b < last; ++b) own = own + batch.totals_of(b);

  WorkTotals up_to{sum_up_to_lane(own.tiles), sum_up_to_lane(own.cost)};
  if (lane_index() == 31) totals_of_warps[thread / 32] = up_to;
  __syncthreads();
  WorkTotals all;
#pragma unroll
  for (int warp = 0; warp < warps; ++warp) {
    const WorkTotals sum = totals_of_warps[warp];
    if (warp < thread / 32) up_to = up_to + sum;
    all = all + sum;
  }

  // The begin of this range, and of the next one. The thread that has added up the tile at the begin writes it, or the
  // last thread if no tile is there.
  for (unsigned next = 0; next < 2; ++next) {
    const unsigned long long target = all.cost * (blockIdx.x + next) / gridDim.x;
    WorkTotals before = up_to - own;
    if (target < before.cost || (target >= up_to.cost && thread < threads - 1)) continue;
    int b = first;
    for (; b < last; ++b) {
      const WorkTotals up_to_b = before + batch.totals_of(b);
      if (up_to_b.cost > target) break;
      before = up_to_b;
    }
    const unsigned index = before.tiles + static_cast<unsigned>((target - before.cost) / batch.cost_of(b));
    if (next == 0) {
      tile_range.entry = b;
      tile_range.tiles_before = before.tiles;
      tile_range.begin = index;
    } else {
      tile_range.end = index;
    }
  }
}

/// Finds the tiles of the CTA. By all `threads` of the CTA; a barrier must follow.
template <class Config, int threads>
__device__ void find_tile_range(const QueryMajorArguments& arguments, WorkTotals* totals_of_warps,
                                TileRange& tile_range) {
  const Batch<Config> batch(arguments);
  const auto& owner = batch.owner;
  const bool is_contiguous = arguments.tiles.order == TileOrder::contiguous;
  if (is_contiguous && owner.jagged()) {
    find_contiguous_range<Config, threads>(batch, totals_of_warps, tile_range);
  } else if (is_contiguous) {
    // One thread searches the begin of the range, the next thread its end.
    const unsigned next = threadIdx.x;
    if (next < 2) {
      (next == 0 ? tile_range.begin : tile_range.end) = static_cast<unsigned>(
          first_slot_of_cta(arguments.common, owner, Config::tile_keys, blockIdx.x + next, gridDim.x));
    }
  } else if (threadIdx.x == 0) {
    tile_range = {0, 0, 0, owner.jagged() ? ~0u : static_cast<unsigned>(owner.heads * owner.slots())};
  }
}

/// Iterates over the tiles of the CTA, a few at a time. By one warp.
template <class Config>
struct TileIterator {
  Batch<Config> batch;
  Entries entries{};  ///< of a jagged batch: the entries of the next tiles
  unsigned next;      ///< the first tile: its number in the CTA, or the index in a contiguous range
  unsigned end;       ///< the end of the indices

  __device__ TileIterator(const QueryMajorArguments& arguments, const TileRange& tile_range)
      : batch(arguments), next(tile_range.begin), end(tile_range.end) {
    if (batch.owner.jagged()) entries = batch.entries_from(tile_range.entry, tile_range.tiles_before);
  }

  __device__ TileOrder order() const { return batch.arguments.tiles.order; }

  /// The index of the lane's tile, of `count` tiles that the CTA takes now. In the strided order, each CTA gets one of
  /// gridDim consecutive indices, rotated by 7 each time: under a mask the tiles of a head differ in cost, and without
  /// the rotation tiles at a fixed distance would always go to the same CTA. With 132 CTAs the next index of a CTA is
  /// 139 further, a prime number, so that no distance fits.
  __device__ unsigned take_index(unsigned count) {
    constexpr unsigned rotation = 7;
    const auto lane = static_cast<unsigned>(lane_index());
    if (order() == TileOrder::dynamic) {
      unsigned first = 0;
      if (lane == 0) first = atomicAdd(batch.arguments.tiles_taken, count);
      return __shfl_sync(0xffffffffu, first, 0) + lane;
    }
    const unsigned number = next + lane;
    next += count;
    if (order() == TileOrder::contiguous) return number;
    return number * gridDim.x + (blockIdx.x + number * rotation) % gridDim.x;
  }

  /// The next tiles of the CTA, one for each of the first `count` lanes while tiles are left.
  __device__ Work take(unsigned count) {
    const unsigned at = take_index(count);
    const bool wanted = static_cast<unsigned>(lane_index()) < count && at < end;
    if (batch.owner.jagged()) return batch.work_of(entries, at, wanted);
    if (!wanted) return {};
    return work_at(batch.arguments.common, batch.owner, true, at, 0);
  }

  /// Takes the last tile again the next time. Not with the dynamic order.
  __device__ void give_back() { --next; }
};

}  // namespace gdpa::pipeline
