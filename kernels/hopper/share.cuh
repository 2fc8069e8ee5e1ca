// Which tiles of queries are a CTA's. A tile has a rank: entries of the batch follow each other, in an entry its heads,
// and in a head its tiles; there is no rank without a tile, so that CTAs get as many each, whatever lengths are.
//
// Where keys are many, CTAs that run together shall read the same ones, and each takes one of gridDim ranks. Where they
// fit the buffers, or a head has one tile of queries, so that nobody else reads its keys, the share is a run of ranks
// that takes as long as the others', by the keys that its tiles meet.
//
// All threads of the CTA find where its share lies, before they part: for a run every length of a jagged batch is read,
// which would take one warp tens of microseconds. Then a warp finds the tiles themselves, one a lane.
#pragma once

#include "common/lanes.cuh"
#include "common/work.cuh"
#include "hopper/arguments.cuh"

namespace gdpa::hopper {

/// 32 entries of a jagged batch, one a lane.
struct Entries {
  int first;
  unsigned tiles_before;  ///< of the entries before these
  unsigned tiles_up_to;   ///< and of these up to and with the lane's
};

/// Where the share of a CTA lies; in shared memory, as each pass over its tiles asks.
struct Span {
  int entry;              ///< of a jagged batch, from which on its tiles are looked for
  unsigned tiles_before;  ///< of the entries before that one
  unsigned begin;         ///< of the CTA's tiles, by number; in a run by rank
  unsigned end;           ///< no rank of the CTA lies at or behind it
};

/// Tiles, and what they take.
struct Sum {
  unsigned tiles = 0;
  unsigned long long cost = 0;

  __device__ Sum operator+(const Sum& other) const { return {tiles + other.tiles, cost + other.cost}; }
  __device__ Sum operator-(const Sum& other) const { return {tiles - other.tiles, cost - other.cost}; }
};

/// The tiles of the batch, in 32 bits each as nowhere more fit the memory: registers are few here.
template <class Config>
struct Batch {
  const ForwardArguments& arguments;
  Owner owner;

  __device__ explicit Batch(const ForwardArguments& arguments_)
      : arguments(arguments_),
        owner{arguments.common.params.queries, arguments.common.packed_rows_q, arguments.common.params.heads_q,
              Config::tile_queries, arguments.common.params.batch} {}

  /// The rows of an entry. Two entries after the batch hold the rows without a sequence, which attend to no key: first
  /// the rows after the last offset, then the rows before the first one.
  __device__ Rows queries_of(int64_t b) const {
    if (b < owner.entries) return gdpa::queries_of(arguments.common, b);
    return b == owner.entries ? owner.rows_after() : owner.rows_before();
  }
  __device__ int entries_with_unused_rows() const { return static_cast<int>(owner.entries) + 2; }

  __device__ unsigned tiles_of(int64_t b) const {
    if (b >= entries_with_unused_rows()) return 0;
    const auto rows = static_cast<unsigned>(queries_of(b).count);
    return (rows + Config::tile_queries - 1) / Config::tile_queries * static_cast<unsigned>(owner.heads);
  }

  /// What a tile of the entry takes: tiles of keys, and as much as one of them for Q, O and the way through the ring.
  __device__ unsigned cost_of(int64_t b) const {
    if (b >= owner.entries) return 1;
    const auto rows = static_cast<unsigned>(keys_of(arguments.common, b).count);
    return (rows + Config::tile_keys - 1) / Config::tile_keys + 1;
  }

  __device__ Sum sum_of(int64_t b) const {
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

  /// The work of each lane's rank, where it is wanted and there is such a tile, looked for from `entries` on, which are
  /// then those of the last one.
  __device__ Work work_of(Entries& entries, unsigned rank, bool wanted) const {
    Work work{};
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
        work.key_head = static_cast<int>(divide_counts(work.head * arguments.common.params.heads_k, owner.heads));
        work.queries = queries_of(b);
        work.keys = keys_of(arguments.common, b);
        work.exists = true;
        wanted = false;
      }
      if (__ballot_sync(0xffffffffu, wanted) == 0 || are_last(entries)) return work;
      entries = after(entries);
    }
  }
};

/// Finds a run of the jagged batch that takes as long as those of the other CTAs. By all `threads` of the CTA, each of
/// which adds up entries that follow each other; `of_warps` has room for a sum of each warp. A barrier must follow.
template <class Config, int threads>
__device__ void find_run(const Batch<Config>& batch, Sum* of_warps, Span& span) {
  constexpr int warps = threads / 32;
  const auto thread = static_cast<int>(threadIdx.x);
  const int entries = batch.entries_with_unused_rows();
  const int each = (entries + threads - 1) / threads;
  const int first = min(thread * each, entries), last = min(first + each, entries);
  Sum own;
#pragma unroll 1
  for (int b = first; b < last; ++b) own = own + batch.sum_of(b);

  Sum up_to{sum_up_to_lane(own.tiles), sum_up_to_lane(own.cost)};
  if (lane_index() == 31) of_warps[thread / 32] = up_to;
  __syncthreads();
  Sum all;
#pragma unroll
  for (int warp = 0; warp < warps; ++warp) {
    const Sum sum = of_warps[warp];
    if (warp < thread / 32) up_to = up_to + sum;
    all = all + sum;
  }

  // Where this run begins, and the next one: it is for the thread to say that has added up the tile there, or for the
  // last one where there is none.
  for (unsigned next = 0; next < 2; ++next) {
    const unsigned long long target = all.cost * (blockIdx.x + next) / gridDim.x;
    Sum before = up_to - own;
    if (target < before.cost || (target >= up_to.cost && thread < threads - 1)) continue;
    int b = first;
    for (; b < last; ++b) {
      const Sum up_to_b = before + batch.sum_of(b);
      if (up_to_b.cost > target) break;
      before = up_to_b;
    }
    const unsigned rank = before.tiles + static_cast<unsigned>((target - before.cost) / batch.cost_of(b));
    if (next == 0) {
      span.entry = b;
      span.tiles_before = before.tiles;
      span.begin = rank;
    } else {
      span.end = rank;
    }
  }
}

/// Finds the CTA's share, by all `threads` of the CTA, as above.
template <class Config, int threads>
__device__ void find_share(const ForwardArguments& arguments, Sum* of_warps, Span& span) {
  const Batch<Config> batch(arguments);
  const Owner& owner = batch.owner;
  if (arguments.in_runs && owner.jagged()) {
    find_run<Config, threads>(batch, of_warps, span);
  } else if (arguments.in_runs) {
    // One thread searches where this share begins, the next one where it ends.
    const unsigned next = threadIdx.x;
    if (next < 2) {
      (next == 0 ? span.begin : span.end) = static_cast<unsigned>(
          first_slot_of_cta(arguments.common, owner, Config::tile_keys, blockIdx.x + next, gridDim.x));
    }
  } else if (threadIdx.x == 0) {
    span = {0, 0, 0, owner.jagged() ? ~0u : static_cast<unsigned>(owner.heads * owner.places())};
  }
}

/// The CTA's share, a few tiles at a time, by one warp.
template <class Config>
struct Share {
  Batch<Config> batch;
  Entries entries{};  ///< of a jagged batch, where the next tiles are looked for
  unsigned next;      ///< of the CTA's tiles, by number; in a run by rank
  unsigned end;       ///< no rank of the CTA lies at or behind it

  __device__ Share(const ForwardArguments& arguments, const Span& span)
      : batch(arguments), next(span.begin), end(span.end) {
    if (batch.owner.jagged()) entries = batch.entries_from(span.entry, span.tiles_before);
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
  __device__ Work take(unsigned count) {
    const auto lane = static_cast<unsigned>(lane_index());
    const unsigned at = rank(next + lane);
    const bool wanted = lane < count && at < end;
    next += count;
    if (batch.owner.jagged()) return batch.work_of(entries, at, wanted);
    return wanted ? work_at(batch.arguments.common, batch.owner, true, at, 0) : Work{};
  }
};

}  // namespace gdpa::hopper
