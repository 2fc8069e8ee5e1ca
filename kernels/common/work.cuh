// The tile order: the tile, the head and the batch entry of a slot. The tiles of one side of a problem are in slots;
// a slot has one tile or none. The host never knows the lengths of a jagged batch, and no table of tiles is made. Entry
// b of a jagged side, with c(b) rows in the entries before it, has the slots
//
//     c(b) / tile + b + 1  ...  c(b + 1) / tile + b + 1.
//
// These are at least as many as its tiles, because ceil((y - x) / t) <= y / t - x / t + 1. A search of c finds the
// entry of a slot. A slot without a tile is skipped. c are the cumulative lengths, or sums of lengths that
// portable/locate_sequences.cuh writes.
//
// With cumulative lengths, two more entries have the rows without a sequence: entry -1 the rows before the first
// offset, and entry `batch` the rows after the last one. They have no rows on the other side, so their outputs become
// zeros. In other jagged layouts, portable/clear_gaps.cuh writes these zeros.
//
// A dense side has heads * batch * ceil(length / tile) slots. A side that the batch shares has `splits` entries instead
// of `batch`. With a batch map, the entries of a key-major owner are the sequences of keys. The host includes this file
// too, to test it.
#pragma once

#include "common/arguments.cuh"
#include "common/sequence.cuh"

namespace gdpa {

/// One piece of work: a tile of one head, and the batch entries [batch_begin, batch_end) that it is computed for. This
/// is one entry unless the batch shares the owner. With a batch map and a tile of keys, these are places in
/// KeySequences::entries. If the owner is rows of the operand of keys, these are all entries, and `keys` are all rows.
struct Work {
  int64_t batch_begin;
  int64_t batch_end;
  int64_t entry;  ///< of the owner: the batch entry, the split of the batch, or the sequence of keys
  int64_t slot;   ///< in the tile order of all heads
  int head;       ///< of the owner's side
  int key_head;
  int tile;
  bool exists;   ///< false for a slot without a tile
  Rows queries;  ///< of entry batch_begin; none if this is a place in KeySequences::entries
  Rows keys;
};

/// count / divisor in 32 bits. Both are numbers of tiles, which are below 2^32 on every GPU. A division in 64 bits
/// would be a function call.
GDPA_HOST_DEVICE inline int64_t divide_counts(int64_t count, int64_t divisor) {
  return static_cast<int64_t>(static_cast<unsigned>(count) / static_cast<unsigned>(divisor));
}

/// Whether b is an entry of the batch, and not one of the two entries of rows without a sequence.
GDPA_HOST_DEVICE inline bool is_in_batch(const CommonArguments& arguments, int64_t b) {
  return b >= 0 && b < arguments.params.batch;
}

/// The rows of entry b; none if b is not in the batch.
template <class Layout>
GDPA_HOST_DEVICE Rows queries_of(const CommonArguments& arguments, int64_t b) {
  if (!is_in_batch(arguments, b)) return {0, 0};
  return Layout::rows_of(arguments.params.queries, b, arguments.packed_rows_q);
}
template <class Layout>
GDPA_HOST_DEVICE Rows keys_of(const CommonArguments& arguments, int64_t b) {
  if (!is_in_batch(arguments, b)) return {0, 0};
  return Layout::rows_of(arguments.params.keys, b, arguments.packed_rows_k);
}

/// The sequences of work whose owner is the queries.
GDPA_HOST_DEVICE inline SequencePair pair_of(const Params& params, const Work& work) {
  return pair_in_batch(params, work.batch_begin, work.head, work.queries.count, work.keys.count);
}

/// The sequences of work whose owner is the keys, with the first query head of the key head.
GDPA_HOST_DEVICE inline SequencePair pair_of_keys(const Params& params, const Work& work) {
  const int first_head = work.head * static_cast<int>(divide_counts(params.heads_q, params.heads_k));
  return pair_in_batch(params, work.batch_begin, first_head, work.queries.count, work.keys.count);
}

/// The owner of the work: the side whose tiles the CTAs compute, the queries or the keys.
template <class Layout>
struct Owner {
  const Sequences& side;
  int64_t packed_rows;
  int64_t heads;
  int64_t tile;
  int64_t entries;  ///< batch entries, splits of the batch, or sequences of keys

  GDPA_HOST_DEVICE bool jagged() const { return Layout::is_jagged(side); }
  GDPA_HOST_DEVICE int64_t tiles_each() const { return (side.length + tile - 1) / tile; }
  GDPA_HOST_DEVICE int64_t rows_before(int64_t b) const { return Layout::rows_before(side, b, packed_rows); }
  GDPA_HOST_DEVICE Rows rows_of(int64_t b) const { return Layout::rows_of(side, b, packed_rows); }
  GDPA_HOST_DEVICE int64_t first_slot(int64_t b) const { return b < 0 ? 0 : rows_before(b) / tile + b + 1; }
  /// The rows without a sequence: the rows of entry -1, and the rows of the entry after the last one. They may be more
  /// than 32 bits count. The result has those after the first `skipped` rows, up to most_gpu_rows.
  GDPA_HOST_DEVICE Rows first_rows(int64_t skipped = 0) const {
    return {skipped, static_cast<int>(clamp(rows_before(0) - skipped, 0, most_gpu_rows))};
  }
  GDPA_HOST_DEVICE Rows last_rows(int64_t skipped = 0) const {
    if (Layout::has_gaps(side)) return {0, 0};
    const int64_t first = rows_before(entries) + skipped;
    return {first, static_cast<int>(clamp(packed_rows - first, 0, most_gpu_rows))};
  }
  /// The slot of an entry's first tile, in the tile order of one head.
  GDPA_HOST_DEVICE int64_t first_slot_of(int64_t b) const { return jagged() ? first_slot(b) : b * tiles_each(); }

  /// The number of slots of one head. Sequences that overlap, or that several entries have, may have more rows together
  /// than the operand.
  GDPA_HOST_DEVICE int64_t slots() const {
    if (!jagged()) return entries * tiles_each();
    return (Layout::has_gaps(side) ? rows_before(entries) : packed_rows) / tile + entries + 2;
  }
};

/// The keys as owner. `entries` counts the batch entries, or the splits of the batch, without a batch map.
template <class Layout>
GDPA_HOST_DEVICE Owner<Layout> owner_of_keys(const CommonArguments& arguments, int64_t tile, int64_t entries) {
  const Params& params = arguments.params;
  const KeySequences& sequences = arguments.key_sequences;
  if constexpr (Layout::has_batch_map || Layout::owns_rows) {
    return {sequences.side, arguments.packed_rows_k, params.heads_k, tile, sequences.count};
  } else {
    return {params.keys, arguments.packed_rows_k, params.heads_k, tile, entries};
  }
}

/// The number of lanes of a warp for which `holds(lane)` is true. Each lane evaluates its own.
template <class Predicate>
GDPA_HOST_DEVICE int count_lanes(Predicate holds) {
#ifdef __CUDACC__
  return __popc(__ballot_sync(0xffffffffu, holds(static_cast<int>(threadIdx.x % 32))));
#else
  int count = 0;
  for (int lane = 0; lane < 32; ++lane) count += holds(lane);
  return count;
#endif
}

/// The last entry, from -1 to the one after the batch, with first_slot(entry) * heads <= slot. Called by one warp,
/// which compares 32 entries in each round.
template <class Layout>
GDPA_HOST_DEVICE int64_t find_entry_by_warp(const Owner<Layout>& owner, int64_t slot) {
  int64_t low = -1;
  int64_t size = owner.entries + 2;
  while (size > 1) {
    const int64_t step = (size + 31) / 32;
    const int at_or_before = count_lanes([&](int lane) {
      const int64_t at = lane * step;
      return at < size && owner.first_slot(low + at) * owner.heads <= slot;
    });
    // The comparison may be false for all entries if the offsets fall, which is not allowed.
    const int64_t passed = at_or_before > 0 ? at_or_before - 1 : 0;
    low += passed * step;
    size = size - passed * step < step ? size - passed * step : step;
  }
  return low;
}

/// The same, called by one thread.
template <class Layout>
GDPA_HOST_DEVICE int64_t find_entry_by_thread(const Owner<Layout>& owner, int64_t slot) {
  int64_t low = -1;
  for (int64_t size = owner.entries + 2; size > 1;) {
    const int64_t half = size / 2;
    const bool is_before = owner.first_slot(low + half) * owner.heads <= slot;
    if (is_before) low += half;
    size = is_before ? size - half : half;
  }
  return low;
}

/// The first slot of CTA `cta`, where each of `ctas` CTAs gets a contiguous range of slots. If all entries have the
/// same number of queries and the keys are jagged, the CTAs get the same cost instead of the same number of slots: the
/// cost of a slot is the rows that it reads, its keys and `rows_per_slot` more. The cumulative lengths of the keys are
/// prefix sums of this cost, so that a search of them finds the entry in which the CTA begins.
template <class Layout>
GDPA_HOST_DEVICE int64_t first_slot_of_cta(const CommonArguments& arguments, const Owner<Layout>& owner,
                                           int64_t rows_per_slot, int64_t cta, int64_t ctas) {
  const Sequences& keys = arguments.params.keys;
  const int64_t slots = owner.heads * owner.slots();
  if (owner.jagged() || !Layout::is_jagged(keys)) return slots * cta / ctas;
  const auto cost_before = [&](int64_t b) {
    return Layout::rows_before(keys, b, arguments.packed_rows_k) + b * rows_per_slot;
  };
  const int64_t target = cost_before(owner.entries) * cta / ctas;
  int64_t entry = 0;  // the last entry with cost_before(entry) <= target
  for (int64_t size = owner.entries + 1; size > 1;) {
    const int64_t half = size / 2;
    const bool is_beyond = cost_before(entry + half) > target;
    if (!is_beyond) entry += half;
    size = is_beyond ? half : size - half;
  }
  if (entry >= owner.entries) return slots;
  const int64_t before = cost_before(entry), cost = cost_before(entry + 1) - before;
  const int64_t each = owner.heads * owner.tiles_each();
  // The cost is negative if the offsets fall, which is not allowed.
  return entry * each + (cost > 0 ? clamp((target - before) * each / cost, 0, each) : 0);
}

/// The work of a slot. The tiles of a head are consecutive, so that CTAs that run at the same time read the same keys,
/// or queries. `entry` is the entry of the slot if the owner is jagged.
template <class Layout>
GDPA_HOST_DEVICE Work work_at(const CommonArguments& arguments, const Owner<Layout>& owner, bool owns_queries,
                              int64_t slot, int64_t entry) {
  const Params& params = arguments.params;
  Work work{};
  work.slot = slot;
  int64_t tiles = owner.tiles_each();
  int64_t first = 0;
  if (owner.jagged()) {
    work.entry = entry;
    first = owner.first_slot(work.entry);
    tiles = (work.entry < owner.entries ? owner.first_slot(work.entry + 1) : owner.slots()) - first;
  } else {
    work.entry = tiles > 0 ? divide_counts(slot, owner.heads * tiles) : 0;
    first = work.entry * tiles;
  }
  const int64_t rest = slot - first * owner.heads;
  if (tiles <= 0 || rest < 0 || rest >= tiles * owner.heads) return work;  // only with offsets that fall
  work.head = static_cast<int>(divide_counts(rest, tiles));
  work.key_head = static_cast<int>(divide_counts(work.head * params.heads_k, owner.heads));
  work.tile = static_cast<int>(rest - work.head * tiles);
  const bool owns_sequences = Layout::has_batch_map && !owns_queries;
  if (owns_sequences) {
    if (work.entry >= 0 && work.entry < owner.entries) {
      work.batch_begin = arguments.key_sequences.first_entry[work.entry];
      work.batch_end = arguments.key_sequences.first_entry[work.entry + 1];
      work.keys = owner.rows_of(work.entry);
    }
  } else {
    if (owner.jagged()) {
      work.batch_begin = work.entry;
      work.batch_end = work.entry + 1;
    } else {
      work.batch_begin = work.entry * params.batch / owner.entries;
      work.batch_end = (work.entry + 1) * params.batch / owner.entries;
    }
    work.queries = queries_of<Layout>(arguments, work.batch_begin);
    work.keys = keys_of<Layout>(arguments, work.batch_begin);
    if (Layout::owns_rows && !owns_queries) work.keys = owner.rows_of(0);
  }
  Rows& owned = owns_queries ? work.queries : work.keys;
  const bool is_before = work.entry < 0;
  // Also if the batch is empty and shares the owner: the gradient of its rows is then 0.
  const bool is_after = work.entry == (owns_sequences ? owner.entries : params.batch);
  if (is_before || is_after) {
    // Rows::count has 32 bits. The rows of this many tiles fit into it, so that larger ranges are divided.
    constexpr int most_tiles = 1 << 20;
    const int64_t skipped = int64_t{work.tile / most_tiles} * most_tiles * owner.tile;
    owned = is_before ? owner.first_rows(skipped) : owner.last_rows(skipped);
    work.tile %= most_tiles;
  }
  work.exists = work.tile * owner.tile < owned.count;
  return work;
}

/// The same, called by one warp, which also finds the entry.
template <class Layout>
GDPA_HOST_DEVICE Work find_work(const CommonArguments& arguments, const Owner<Layout>& owner, bool owns_queries,
                                int64_t slot) {
  return work_at(arguments, owner, owns_queries, slot, owner.jagged() ? find_entry_by_warp(owner, slot) : 0);
}

}  // namespace gdpa
