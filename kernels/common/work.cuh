// Which tile of which head and batch entry a place stands for. The host never knows the lengths of a jagged batch, and
// no table of tiles is made either: entry b of a side that begins at row c(b) is given the places
//
//     c(b) / tile + b + 1  ...  c(b + 1) / tile + b + 1,
//
// at least as many as it has tiles, since ceil((y - x) / t) <= y / t - x / t + 1. A search of the cumulative lengths
// finds the entry of a place. A place without a tile is skipped. Two more entries hold the rows without a sequence:
// entry -1 the rows before the first offset, and entry `batch` the rows after the last one. They have no rows on the
// other side, so their outputs become zeros.
//
// A dense side has heads * batch * ceil(length / tile) places; one that the batch shares has `parts` in the place of
// batch. The host includes this file too, to test it.
#pragma once

#include "common/arguments.cuh"
#include "common/sequence.cuh"

namespace gdpa {

/// One piece of work: a tile of one head, summed over batch entries [batch_begin, batch_end), which is one entry
/// unless the owner is shared by the batch.
struct Work {
  int64_t batch_begin;
  int64_t batch_end;
  int64_t owner;  ///< batch_begin, or which part of the batch
  int64_t place;  ///< among all
  int head;       ///< of the owner's side
  int key_head;
  int tile;
  bool exists;   ///< false for a place without a tile
  Rows queries;  ///< of entry batch_begin
  Rows keys;
};

/// Whether b is an entry of the batch, and not one of the two whose rows have no sequence.
GDPA_HOST_DEVICE inline bool is_in_batch(const CommonArguments& arguments, int64_t b) {
  return b >= 0 && b < arguments.params.batch;
}

/// The rows of entry b: none where b is not in the batch.
GDPA_HOST_DEVICE inline Rows queries_of(const CommonArguments& arguments, int64_t b) {
  if (!is_in_batch(arguments, b)) return {0, 0};
  return rows_of(arguments.params.queries, b, arguments.packed_rows_q);
}
GDPA_HOST_DEVICE inline Rows keys_of(const CommonArguments& arguments, int64_t b) {
  if (!is_in_batch(arguments, b)) return {0, 0};
  return rows_of(arguments.params.keys, b, arguments.packed_rows_k);
}

GDPA_HOST_DEVICE inline float out_scale_of(const CommonArguments& arguments, int64_t b, const Rows& queries,
                                           const Rows& keys) {
  if (!is_in_batch(arguments, b)) return 0.0f;
  return static_cast<float>(arguments.params.out_scale.of(b, queries.count, keys.count));
}

/// The side whose tiles are dealt out.
struct Owner {
  const Sequences& side;
  int64_t packed_rows;
  int64_t heads;
  int64_t tile;
  int64_t entries;  ///< batch entries, or parts of the batch

  GDPA_HOST_DEVICE bool jagged() const { return side.cumulative != nullptr; }
  GDPA_HOST_DEVICE int64_t tiles_each() const { return (side.length + tile - 1) / tile; }
  GDPA_HOST_DEVICE int64_t first_row(int64_t b) const { return clamp(side.begin(b), 0, packed_rows); }
  GDPA_HOST_DEVICE int64_t first_place(int64_t b) const { return b < 0 ? 0 : first_row(b) / tile + b + 1; }
  /// The rows that no sequence has: of entry -1, and of the entry after the last one.
  GDPA_HOST_DEVICE Rows rows_before() const { return {0, static_cast<int>(first_row(0))}; }
  GDPA_HOST_DEVICE Rows rows_after() const {
    const int64_t used = first_row(entries);
    return {used, static_cast<int>(packed_rows - used)};
  }
  /// The place of an entry's first tile among those of one head.
  GDPA_HOST_DEVICE int64_t first_place_of(int64_t b) const { return jagged() ? first_place(b) : b * tiles_each(); }

  /// Places of one head.
  GDPA_HOST_DEVICE int64_t places() const {
    return jagged() ? packed_rows / tile + entries + 2 : entries * tiles_each();
  }
};

/// For how many of the lanes 0 ... 31 of a warp `holds(lane)` is true; each lane asks for itself.
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

/// The last entry, from -1 to the one after the batch, with first_place(entry) * heads <= place; by one warp, which
/// looks at 32 places in one round.
GDPA_HOST_DEVICE inline int64_t find_entry_by_warp(const Owner& owner, int64_t place) {
  int64_t low = -1;
  int64_t size = owner.entries + 2;
  while (size > 1) {
    const int64_t step = (size + 31) / 32;
    const int at_or_before = count_lanes([&](int lane) {
      const int64_t at = lane * step;
      return at < size && owner.first_place(low + at) * owner.heads <= place;
    });
    // Offsets that fall, which they must not, may say no everywhere.
    const int64_t passed = at_or_before > 0 ? at_or_before - 1 : 0;
    low += passed * step;
    size = size - passed * step < step ? size - passed * step : step;
  }
  return low;
}

/// The same by one thread.
GDPA_HOST_DEVICE inline int64_t find_entry_by_thread(const Owner& owner, int64_t place) {
  int64_t low = -1;
  for (int64_t size = owner.entries + 2; size > 1;) {
    const int64_t half = size / 2;
    const bool is_before = owner.first_place(low + half) * owner.heads <= place;
    if (is_before) low += half;
    size = is_before ? size - half : half;
  }
  return low;
}

/// How often `part` goes into `count`. Both count tiles, of which no GPU's memory holds 2^32, and a division in 64 bits
/// is a call of a function.
GDPA_HOST_DEVICE inline int64_t divide_counts(int64_t count, int64_t part) {
  return static_cast<int64_t>(static_cast<unsigned>(count) / static_cast<unsigned>(part));
}

/// Where the share of one of `shares` begins when each gets a run of places. Where every entry has as many queries, and
/// as many keys as its own offsets say, shares differ by their keys: a place then costs what it reads, its keys and
/// `rows_beside`, and the entry where a share begins is found by the offsets of the keys, which are such a sum already.
GDPA_HOST_DEVICE inline int64_t first_slot_of_cta(const CommonArguments& arguments, const Owner& owner,
                                                  int64_t rows_beside, int64_t share, int64_t shares) {
  const Sequences& keys = arguments.params.keys;
  const int64_t places = owner.heads * owner.places();
  if (owner.jagged() || keys.cumulative == nullptr) return places * share / shares;
  const auto cost_before = [&](int64_t b) {
    return clamp(keys.begin(b), 0, arguments.packed_rows_k) + b * rows_beside;
  };
  const int64_t target = cost_before(owner.entries) * share / shares;
  int64_t entry = 0;  // the last one before which there is no more than that
  for (int64_t size = owner.entries + 1; size > 1;) {
    const int64_t half = size / 2;
    const bool is_beyond = cost_before(entry + half) > target;
    if (!is_beyond) entry += half;
    size = is_beyond ? half : size - half;
  }
  if (entry >= owner.entries) return places;
  const int64_t before = cost_before(entry), cost = cost_before(entry + 1) - before;
  const int64_t each = owner.heads * owner.tiles_each();
  // Offsets that fall, which they must not, may cost less than nothing.
  return entry * each + (cost > 0 ? clamp((target - before) * each / cost, 0, each) : 0);
}

/// The work of a place, tiles innermost so that CTAs that run together read the same keys, or queries. `entry` is that
/// of the place where the owner is jagged.
GDPA_HOST_DEVICE inline Work work_at(const CommonArguments& arguments, const Owner& owner, bool owns_queries,
                                     int64_t place, int64_t entry) {
  const Params& params = arguments.params;
  Work work{};
  work.place = place;
  int64_t tiles = owner.tiles_each();
  int64_t first = 0;
  if (owner.jagged()) {
    work.owner = entry;
    first = owner.first_place(work.owner);
    tiles = (work.owner < owner.entries ? owner.first_place(work.owner + 1) : owner.places()) - first;
  } else {
    work.owner = tiles > 0 ? divide_counts(place, owner.heads * tiles) : 0;
    first = work.owner * tiles;
  }
  const int64_t rest = place - first * owner.heads;
  if (tiles <= 0 || rest < 0 || rest >= tiles * owner.heads) return work;  // as only offsets that fall can make it
  work.head = static_cast<int>(divide_counts(rest, tiles));
  work.key_head = static_cast<int>(divide_counts(work.head * params.heads_k, owner.heads));
  work.tile = static_cast<int>(rest - work.head * tiles);
  if (owner.jagged()) {
    work.batch_begin = work.owner;
    work.batch_end = work.owner + 1;
  } else {
    work.batch_begin = work.owner * params.batch / owner.entries;
    work.batch_end = (work.owner + 1) * params.batch / owner.entries;
  }
  work.queries = queries_of(arguments, work.batch_begin);
  work.keys = keys_of(arguments, work.batch_begin);
  Rows& owned = owns_queries ? work.queries : work.keys;
  if (work.owner < 0) owned = owner.rows_before();
  // Also where the batch is empty and the owner is shared: the gradient of its rows is 0.
  if (work.owner == params.batch) owned = owner.rows_after();
  work.exists = work.tile * owner.tile < owned.count;
  return work;
}

/// The same by one warp, which finds the entry too.
GDPA_HOST_DEVICE inline Work find_work(const CommonArguments& arguments, const Owner& owner, bool owns_queries,
                                       int64_t place) {
  return work_at(arguments, owner, owns_queries, place, owner.jagged() ? find_entry_by_warp(owner, place) : 0);
}

}  // namespace gdpa
