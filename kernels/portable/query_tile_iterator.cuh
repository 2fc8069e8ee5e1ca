// The tiles of queries that one CTA of the portable backward iterates over.
#pragma once

#include "common/lanes.cuh"
#include "common/sequence.cuh"
#include "common/work.cuh"

namespace gdpa::portable {

/// Whether the tiles of a CTA's work are in several batch entries: the batch shares the keys, has a batch map, or has
/// sequences of keys that overlap.
template <class Config>
constexpr bool has_several_entries = Config::keys_shared || Config::Layout::has_batch_map || Config::Layout::owns_rows;

/// The queries of batch entry b. If all tiles of a CTA's work are in one entry, `work` has its rows.
template <class Config>
__device__ Rows queries_of_entry(const CommonArguments& arguments, const Work& work, int64_t b) {
  return has_several_entries<Config> ? queries_of<typename Config::Layout>(arguments, b) : work.queries;
}

/// The first key of a CTA's tile of keys in batch entry b. If the owner is rows of the operand, it may be below 0, and
/// some keys of the tile may be in other entries.
template <class Config>
__device__ int first_key_of(const CommonArguments& arguments, const Work& work, int64_t b) {
  const int row = work.tile * Config::tile_keys;
  if constexpr (!Config::Layout::owns_rows) return row;
  return static_cast<int>(row - keys_of<typename Config::Layout>(arguments, b).begin);
}

/// The number of keys of batch entry b.
template <class Config>
__device__ int length_of_keys(const CommonArguments& arguments, const Work& work, int64_t b) {
  return Config::Layout::owns_rows ? keys_of<typename Config::Layout>(arguments, b).count : work.keys.count;
}

/// The coordinates of a tile of queries. head is -1 after the last tile.
struct QueryTileCoord {
  int64_t b;
  int head;   ///< of the queries
  int query;  ///< the first one
  bool is_full;
};

/// Iterates over the tiles of queries that attend to the CTA's tile of keys: over the batch entries of the work, the
/// query heads of the key head, and the tiles of each head.
template <class Config>
struct QueryTileIterator {
  const CommonArguments& arguments;
  const Work& work;
  int64_t place;                         ///< of the entry: Work::batch_begin to Work::batch_end - 1
  int head;                              ///< of the queries; -1 after the last tile
  int position = 0;                      ///< of the current tile in the list
  typename Config::Mask::Tiles tiles{};  ///< of the current entry
  /// The same list, in shared memory, for thread 0 alone. Only thread 0 needs the full tiles, which would occupy
  /// registers of all threads.
  typename Config::Mask::Tiles& tiles_of_thread_0;

  __device__ QueryTileIterator(const CommonArguments& arguments_, const Work& work_,
                               typename Config::Mask::Tiles& tiles_of_thread_0_)
      : arguments(arguments_),
        work(work_),
        place(work_.batch_begin),
        head(first_head()),
        tiles_of_thread_0(tiles_of_thread_0_) {
    enter();
  }

  __device__ int group() const { return static_cast<int>(arguments.params.heads_q / arguments.params.heads_k); }
  __device__ int first_head() const { return work.head * group(); }
  __device__ int64_t entry() const {
    return Config::Layout::has_batch_map ? arguments.key_sequences.entries[place] : place;
  }

  /// The first query of the current tile.
  __device__ int query() const { return tiles.first_row + tiles.row_offset(position, Config::tile_queries); }

  /// The coordinates of the current tile. By thread 0.
  __device__ QueryTileCoord coord() const {
    if (head < 0) return {0, head, 0, false};
    const int64_t b = entry();
    return {b, head, query(), has_all_keys(b) && tiles_of_thread_0.is_full(position)};
  }

  /// Moves to the first tile of the current entry, or of the next entry that has any.
  __device__ void enter() {
    for (; skip_entries(); ++place) {
      const int64_t b = entry();
      const Rows queries = queries_of_entry<Config>(arguments, work, b);
      const SequencePair pair = pair_in_batch(arguments.params, b, first_head(), queries.count,
                                              length_of_keys<Config>(arguments, work, b));
      const Rows keys = keys_of_tile(b, pair.length_k);
      tiles = Config::Mask::of(arguments.params, pair)
                  .query_tiles(static_cast<int>(keys.begin), keys.count, Config::tile_queries);
      if (threadIdx.x == 0) tiles_of_thread_0 = tiles;
      if (tiles.size() > 0) return;
    }
    head = -1;
  }

  __device__ void next() {
    if (head < 0 || ++position < tiles.size()) return;
    position = 0;
    if (++head < first_head() + group()) return;
    head = first_head();
    ++place;
    enter();
  }

 private:
  /// Whether all keys of the tile are in the entry, or come after its last key.
  __device__ bool has_all_keys(int64_t b) const {
    if (!Config::Layout::owns_rows) return true;
    const int first = first_key_of<Config>(arguments, work, b);
    return first >= 0 && first + Config::tile_keys <= length_of_keys<Config>(arguments, work, b);
  }

  /// The keys of the tile in an entry with `length` keys.
  __device__ Rows keys_of_tile(int64_t b, int length) const {
    const int first = first_key_of<Config>(arguments, work, b);
    if (!Config::Layout::owns_rows) return {first, Config::tile_keys};
    const int begin = max(first, 0);
    return {begin, min(first + Config::tile_keys, length) - begin};
  }

  /// Leaves out the entries without a key in the tile: each lane of a warp looks at one entry. Returns whether an entry
  /// is left.
  __device__ bool skip_entries() {
    if constexpr (Config::Layout::owns_rows) {
      for (; place < work.batch_end; place += 32) {
        const int64_t b = place + lane_index();
        bool has_keys = false;
        if (b < work.batch_end) {
          const Rows keys = keys_of<typename Config::Layout>(arguments, b);
          const int64_t first = int64_t{work.tile} * Config::tile_keys;
          has_keys = keys.begin < first + Config::tile_keys && keys.begin + keys.count > first && keys.count > 0;
        }
        __syncwarp();
        const unsigned found = __ballot_sync(0xffffffffu, has_keys);
        if (found != 0) {
          place += __ffs(static_cast<int>(found)) - 1;
          return true;
        }
      }
      return false;
    }
    return place < work.batch_end;
  }
};

}  // namespace gdpa::portable
