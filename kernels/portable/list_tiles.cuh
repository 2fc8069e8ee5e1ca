// The lists of partner tiles of a mask expression (definition/tile_lists.h), for the kernels of one size of tiles.
// Three kernels run one after the other before the kernels that read the lists: locate_lists, list_key_tiles, and in
// backward list_query_tiles.
//
// Interval arithmetic decides for most tiles whether they are empty or full. The scores of the other tiles are
// evaluated until a valid score and a masked score are found.
#pragma once

#include "common/bounds.cuh"
#include "common/lanes.cuh"
#include "common/work.cuh"
#include "portable/arguments.cuh"

namespace gdpa::portable {

/// The tiles of a batch entry.
struct TileCounts {
  int queries;
  int keys;

  __device__ static TileCounts of(const TileLists& lists, int length_q, int length_k) {
    return {(length_q + lists.tile_queries - 1) / lists.tile_queries,
            (length_k + lists.tile_keys - 1) / lists.tile_keys};
  }
};

template <class Config>
using locate_lists_cta = CtaShape<256>;

/// Writes TileLists::entries.
///
/// Launch: grid 1.
template <class Config>
__device__ void locate_lists(const CommonArguments& arguments) {
  constexpr int threads = locate_lists_cta<Config>::threads;
  const TileLists& lists = arguments.params.tile_lists[Config::lists];
  const int64_t batch = arguments.params.batch, each = (batch + threads - 1) / threads;
  const int64_t begin = threadIdx.x * each, end = begin + each < batch ? begin + each : batch;
  const auto entry_of = [&](int64_t b) {
    return ListedEntry{0, queries_of<typename Config::Layout>(arguments, b).count,
                       keys_of<typename Config::Layout>(arguments, b).count};
  };
  const auto size_of = [&](const ListedEntry& entry) {
    const TileCounts counts = TileCounts::of(lists, entry.length_q, entry.length_k);
    return int64_t{counts.queries + 1} * (counts.keys + 1);
  };
  __shared__ int64_t sums[threads];
  int64_t sum = 0;
  for (int64_t b = begin; b < end; ++b) sum += size_of(entry_of(b));
  sums[threadIdx.x] = sum;
  __syncthreads();
  int64_t before = 0;
  for (unsigned thread = 0; thread < threadIdx.x; ++thread) before += sums[thread];
  for (int64_t b = begin; b < end; ++b) {
    ListedEntry entry = entry_of(b);
    const int64_t size = size_of(entry);
    entry.first = before + size <= lists.capacity ? before : -1;
    lists.entries[b] = entry;
    before += size;
  }
}

/// The known properties of the scores of a tile.
struct TileScores {
  bool have_valid;
  bool have_masked;
  bool are_known;
};

/// The queries and the keys of a tile, and the query heads that have the same lists.
struct ListedTile {
  int64_t b;
  int length_q, length_k;
  int first_query, end_query;
  int first_key, end_key;
  int first_head, end_head;

  __device__ SequencePair pair(const Params& params, int head) const {
    return pair_in_batch(params, b, head, length_q, length_k);
  }
};

/// Encloses the condition for the tile of each lane, in all of its heads. By a warp, whose tiles have the same queries.
template <class Config>
__device__ TileScores enclose_tile(const Params& params, const ListedTile& tile) {
  TileScores scores{false, false, true};
  const bounds::Bounds queries = bounds::positions(tile.first_query, tile.end_query - 1);
  for (int head = tile.first_head; head < tile.end_head; ++head) {
    const typename Config::Condition condition(params, tile.pair(params, head));
    const auto of_queries = condition.of_queries(queries);
    const bounds::Bounds holds =
        condition.enclose(queries, bounds::positions(tile.first_key, tile.end_key - 1), of_queries);
    const bool is_valid = holds.low > 0, is_masked = holds.low == 0 && holds.high == 0;
    scores.have_valid |= is_valid;
    scores.have_masked |= is_masked;
    scores.are_known &= is_valid || is_masked;
  }
  scores.are_known |= scores.have_valid && scores.have_masked;
  return scores;
}

/// Evaluates the scores of a tile until one is valid and one is masked. By a warp.
template <class Config>
__device__ TileScores evaluate_tile(const Params& params, const ListedTile& tile) {
  TileScores scores{false, false, true};
  const int queries = tile.end_query - tile.first_query;
  for (int head = tile.first_head; head < tile.end_head; ++head) {
    const typename Config::Condition condition(params, tile.pair(params, head));
    for (int i = 0; i < queries; ++i) {
      // From both ends: neighbouring queries are often alike.
      const int query = i % 2 == 0 ? tile.first_query + i / 2 : tile.end_query - 1 - i / 2;
      for (int first = tile.first_key; first < tile.end_key; first += 32) {
        const int key = first + lane_index();
        const bool exists = key < tile.end_key;
        const bool is_valid = exists && condition.holds(query, key);
        scores.have_valid |= __ballot_sync(0xffffffffu, is_valid) != 0;
        scores.have_masked |= __ballot_sync(0xffffffffu, exists && !is_valid) != 0;
        if (scores.have_valid && scores.have_masked) return scores;
      }
    }
  }
  return scores;
}

/// Writes the list of the key tiles of a query tile, and in backward the elements of this query tile in the lists of
/// query tiles: at the index of the query tile, -1 where the tile is empty. By a warp.
template <class Config>
__device__ void list_keys_of_tile(const Params& params, const TileLists& lists, const Work& work) {
  const int64_t b = work.batch_begin;
  const ListedEntry entry = lists.entries[b];
  const int lane = lane_index();
  const TileCounts counts = TileCounts::of(lists, work.queries.count, work.keys.count);
  const int first_query = work.tile * lists.tile_queries;
  const int first_head = work.head * lists.heads_of_list;
  const auto tile_at = [&](int key_tile) {
    const int first_key = key_tile * lists.tile_keys;
    const int end_query = min(first_query + lists.tile_queries, work.queries.count);
    const int end_key = min(first_key + lists.tile_keys, work.keys.count);
    return ListedTile{b,           work.queries.count, work.keys.count,
                      first_query, end_query,          first_key,
                      end_key,     first_head,         first_head + lists.heads_of_list};
  };
  const auto in_query_list = [&](int key_tile) {
    return lists.query_tiles + lists.query_list(entry, work.head, key_tile, counts.queries, counts.keys) + 1 +
           work.tile;
  };
  int* const list = lists.key_tiles + lists.key_list(entry, work.head, work.tile, counts.queries, counts.keys);
  int count = 0, last = -1;
  for (int first = 0; first < counts.keys; first += 32) {
    const int key_tile = first + lane;
    const bool exists = key_tile < counts.keys;
    const ListedTile tile = tile_at(min(key_tile, counts.keys - 1));  // a lane without a tile takes part in the warp
    TileScores scores = enclose_tile<Config>(params, tile);
    if (!exists) scores = {false, true, true};
    for (unsigned left = __ballot_sync(0xffffffffu, !scores.are_known); left != 0; left &= left - 1) {
      const int source = __ffs(static_cast<int>(left)) - 1;
      const TileScores evaluated = evaluate_tile<Config>(params, tile_at(first + source));
      if (lane == source) scores = evaluated;
    }
    const unsigned present = __ballot_sync(0xffffffffu, scores.have_valid);
    const int position = count + __popc(present & ((1u << lane) - 1));
    const bool has_all_keys = tile.end_key - tile.first_key == lists.tile_keys;
    const bool has_all_queries = tile.end_query - tile.first_query == lists.tile_queries;
    const int full = !scores.have_masked && has_all_keys ? TileList::full : 0;
    if (scores.have_valid) list[1 + position] = key_tile << TileList::flag_bits | full;
    if (exists && lists.query_tiles != nullptr) {
      int* const element = in_query_list(key_tile);
      const int flags = (has_all_queries ? full : 0) | (position == 0 ? TileList::last_writer : 0);
      *element = scores.have_valid ? work.tile << TileList::flag_bits | flags : -1;
      element[counts.queries + 1] = position;
    }
    if (present != 0) last = first + 31 - __clz(static_cast<int>(present));
    count += __popc(present);
  }
  __syncwarp();
  if (lane != 0) return;
  list[0] = count;
  if (last >= 0 && lists.query_tiles != nullptr) *in_query_list(last) |= TileList::first_writer;
}

/// Calls visit(lists, work) by a warp for each tile of queries, or of keys, if the entry has memory for lists and
/// queries and keys.
template <class Config, class Visit>
__device__ void for_all_lists(const CommonArguments& arguments, bool owns_queries, Visit visit) {
  const Params& params = arguments.params;
  const TileLists& lists = params.tile_lists[Config::lists];
  const Owner<typename Config::Layout> owner{
      owns_queries ? params.queries : params.keys, owns_queries ? arguments.packed_rows_q : arguments.packed_rows_k,
      lists.heads, owns_queries ? lists.tile_queries : lists.tile_keys, params.batch};
  const int64_t slots = owner.heads * owner.slots();
  for (int64_t slot = int64_t{blockIdx.x} * list_warps + threadIdx.x / 32; slot < slots;
       slot += int64_t{gridDim.x} * list_warps) {
    const Work work = find_work(arguments, owner, owns_queries, slot);
    if (!work.exists || work.queries.count == 0 || work.keys.count == 0) continue;
    if (lists.entries[work.batch_begin].first >= 0) visit(lists, work);
  }
}

template <class Config>
using list_key_tiles_cta = CtaShape<list_warps * 32>;

/// Launch: grid any number of CTAs, best tiles / list_warps.
template <class Config>
__device__ void list_key_tiles(const CommonArguments& arguments) {
  for_all_lists<Config>(arguments, true, [&](const TileLists& lists, const Work& work) {
    list_keys_of_tile<Config>(arguments.params, lists, work);
  });
}

template <class Config>
using list_query_tiles_cta = CtaShape<list_warps * 32>;

/// Removes the empty tiles from the lists of query tiles, in place.
///
/// Launch: as list_key_tiles.
template <class Config>
__device__ void list_query_tiles(const CommonArguments& arguments) {
  for_all_lists<Config>(arguments, false, [&](const TileLists& lists, const Work& work) {
    const int lane = lane_index();
    const TileCounts counts = TileCounts::of(lists, work.queries.count, work.keys.count);
    int* const list = lists.query_tiles + lists.query_list(lists.entries[work.batch_begin], work.head, work.tile,
                                                           counts.queries, counts.keys);
    int* const elements = list + 1;
    int* const numbers = elements + counts.queries + 1;
    int count = 0;
    for (int first = 0; first < counts.queries; first += 32) {
      const int at = first + lane;
      const int element = at < counts.queries ? elements[at] : -1;
      const int number = at < counts.queries ? numbers[at] : 0;
      const unsigned present = __ballot_sync(0xffffffffu, element >= 0);
      const int position = count + __popc(present & ((1u << lane) - 1));
      if (element >= 0) {
        elements[position] = element;
        numbers[position] = number;
      }
      count += __popc(present);
      __syncwarp();
    }
    if (lane == 0) *list = count;
  });
}

}  // namespace gdpa::portable
