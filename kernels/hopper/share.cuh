// Which tiles of queries are a CTA's, found by one warp, one tile a lane. A tile has a rank: entries of the batch
// follow each other, in an entry its heads, and in a head its tiles; there is no rank without a tile, so that CTAs get
// as many each, whatever lengths are.
//
// Where keys are many, CTAs that run together shall read the same ones, and each takes one of gridDim ranks. Where they
// fit the buffers, or a head has one tile of queries, so that nobody else reads its keys, the share is a run of ranks
// that takes as long as the others', by the keys that its tiles meet.
#pragma once

#include "common/lanes.cuh"
#include "hopper/arguments.cuh"
#include "portable/work.cuh"

namespace gdpa::hopper {

/// 32 entries of a jagged batch, one a lane.
struct Entries {
  int first;
  unsigned tiles_before;  ///< of the entries before these
  unsigned tiles_up_to;   ///< and of these up to and with the lane's
};

/// The tiles of the batch, in 32 bits each as nowhere more fit the memory: registers are few here.
template <class Config>
struct Batch {
  const ForwardArguments& arguments;
  portable::Owner owner;

  __device__ explicit Batch(const ForwardArguments& arguments_)
      : arguments(arguments_),
        owner{arguments.common.params.queries, arguments.common.packed_rows_q, arguments.common.params.heads_q,
              Config::tile_queries, arguments.common.params.batch} {}

  /// Rows of an entry; of the one behind the last those that no sequence has, which meet nothing.
  __device__ Rows queries_of(int64_t b) const {
    if (b < owner.entries) return portable::queries_of(arguments.common, b);
    const int64_t used = owner.first_row(owner.entries);
    return {used, static_cast<int>(owner.packed_rows - used)};
  }

  __device__ unsigned tiles_of(int64_t b) const {
    if (b > owner.entries) return 0;
    const auto rows = static_cast<unsigned>(queries_of(b).count);
    return (rows + Config::tile_queries - 1) / Config::tile_queries * static_cast<unsigned>(owner.heads);
  }

  /// What a tile of the entry takes: tiles of keys, and as much as one of them for Q, O and the way through the ring.
  __device__ unsigned cost_of(int64_t b) const {
    if (b >= owner.entries) return 1;
    const auto rows = static_cast<unsigned>(portable::keys_of(arguments.common, b).count);
    return (rows + Config::tile_keys - 1) / Config::tile_keys + 1;
  }

  __device__ Entries entries_from(int first, unsigned tiles_before) const {
    return {first, tiles_before, tiles_before + sum_up_to_lane(tiles_of(first + lane_index()))};
  }
  __device__ bool are_last(const Entries& entries) const { return entries.first + 32 > owner.entries; }
  __device__ Entries after(const Entries& entries) const {
    return entries_from(entries.first + 32, __shfl_sync(0xffffffffu, entries.tiles_up_to, 31));
  }

  /// The cost of all tiles.
  __device__ unsigned long long cost() const {
    unsigned long long sum = 0;
#pragma unroll 4
    for (int64_t b = lane_index(); b <= owner.entries; b += 32) {
      sum += static_cast<unsigned long long>(tiles_of(b)) * cost_of(b);
    }
    return __shfl_sync(0xffffffffu, sum_up_to_lane(sum), 31);
  }

  /// The rank before which tiles cost no more than `target`, looked for from `entries` on, before which they cost
  /// `cost_before`; `entries` are then those that have the rank.
  __device__ unsigned rank_at_cost(Entries& entries, unsigned long long& cost_before, unsigned long long target) const {
    for (;;) {
      const unsigned long long each = cost_of(entries.first + lane_index());
      unsigned tiles_before = __shfl_up_sync(0xffffffffu, entries.tiles_up_to, 1);
      if (lane_index() == 0) tiles_before = entries.tiles_before;
      const unsigned long long cost = (entries.tiles_up_to - tiles_before) * each;
      const unsigned long long cost_up_to = cost_before + sum_up_to_lane(cost);
      const unsigned beyond = __ballot_sync(0xffffffffu, cost_up_to > target);
      if (beyond != 0) {
        const auto rank = tiles_before + static_cast<unsigned>((target - (cost_up_to - cost)) / each);
        return __shfl_sync(0xffffffffu, rank, __ffs(static_cast<int>(beyond)) - 1);
      }
      if (are_last(entries)) return __shfl_sync(0xffffffffu, entries.tiles_up_to, 31);
      cost_before = __shfl_sync(0xffffffffu, cost_up_to, 31);
      entries = after(entries);
    }
  }

  /// The work of each lane's rank, where it is wanted and there is such a tile, looked for from `entries` on, which are
  /// then those of the last one.
  __device__ portable::Work work_of(Entries& entries, unsigned rank, bool wanted) const {
    portable::Work work{};
    for (;;) {
      int lane = 0;  // the first one, or the last, with rank < tiles_up_to
#pragma unroll
      for (int half = 16; half > 0; half /= 2) {
        if (__shfl_sync(0xffffffffu, entries.tiles_up_to, lane + half - 1) <= rank) lane += half;
      }
      const unsigned up_to = __shfl_sync(0xffffffffu, entries.tiles_up_to, lane);
      unsigned before = __shfl_sync(0xffffffffu, entries.tiles_up_to, max(lane - 1, 0));
      if (lane == 0) before = entries.tiles_before;
      if (wanted && rank < up_to) {
        const int b = entries.first + lane;
        const auto tiles = static_cast<int>((up_to - before) / static_cast<unsigned>(owner.heads));
        const auto index = static_cast<int>(rank - before);
        work.batch_begin = b;
        work.head = index / tiles;
        work.tile = index % tiles;
        work.key_head =
            static_cast<int>(portable::whole_parts(work.head * arguments.common.params.heads_k, owner.heads));
        work.queries = queries_of(b);
        work.keys = portable::keys_of(arguments.common, b);
        work.exists = true;
        wanted = false;
      }
      if (__ballot_sync(0xffffffffu, wanted) == 0 || are_last(entries)) return work;
      entries = after(entries);
    }
  }
};

/// The CTA's share, a few tiles at a time.
template <class Config>
struct Share {
  Batch<Config> batch;
  Entries entries{};   ///< of a jagged batch, where the next tiles are looked for
  unsigned next = 0;   ///< of the CTA's tiles, by number; in a run by rank
  unsigned end = ~0u;  ///< no rank of the CTA lies at or behind it

  __device__ explicit Share(const ForwardArguments& arguments) : batch(arguments) {
    const portable::Owner& owner = batch.owner;
    const unsigned share = blockIdx.x, shares = gridDim.x;
    if (owner.jagged()) {
      entries = batch.entries_from(0, 0);
      if (!in_runs()) return;
      const unsigned long long cost = batch.cost();
      unsigned long long cost_before = 0;
      next = batch.rank_at_cost(entries, cost_before, cost * share / shares);
      Entries last = entries;
      end = batch.rank_at_cost(last, cost_before, cost * (share + 1) / shares);
    } else if (in_runs()) {
      // One lane searches where this share begins, the next one where it ends.
      const auto first = static_cast<unsigned>(
          portable::first_place_of_share(arguments.common, owner, Config::tile_keys, share + threadIdx.x % 2, shares));
      next = __shfl_sync(0xffffffffu, first, 0);
      end = __shfl_sync(0xffffffffu, first, 1);
    } else {
      end = static_cast<unsigned>(owner.heads * owner.places());
    }
  }

  __device__ bool in_runs() const { return batch.arguments.in_runs; }

  /// Each gridDim ranks that follow each other are dealt to all CTAs, each time turned by a few: under a mask the tiles
  /// of a head take more time or less, and those at one distance would else always fall to the same CTAs. With 132 CTAs
  /// a rank's successor in the CTA is 139 further on, a prime, so that no distance fits.
  __device__ unsigned rank(unsigned number) const {
    constexpr unsigned turned_by = 7;
    return in_runs() ? number : number * gridDim.x + (blockIdx.x + number * turned_by) % gridDim.x;
  }

  /// The next tiles of the CTA, one for each of the first `count` lanes as long as there are any.
  __device__ portable::Work take(unsigned count) {
    const auto lane = static_cast<unsigned>(lane_index());
    const unsigned at = rank(next + lane);
    const bool wanted = lane < count && at < end;
    next += count;
    if (batch.owner.jagged()) return batch.work_of(entries, at, wanted);
    return wanted ? portable::work_at(batch.arguments.common, batch.owner, true, at, 0) : portable::Work{};
  }
};

}  // namespace gdpa::hopper
