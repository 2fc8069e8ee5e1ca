// The tiles of queries that one CTA of the portable backward iterates over.
#pragma once

#include "common/sequence.cuh"
#include "common/work.cuh"

namespace gdpa::portable {

/// Whether the tiles of a CTA's work are in several batch entries: the batch shares the keys, or has a batch map.
template <class Config>
constexpr bool has_several_entries = Config::keys_shared || Config::Layout::has_batch_map;

/// The queries of batch entry b. If all tiles of a CTA's work are in one entry, `work` has its rows.
template <class Config>
__device__ Rows queries_of_entry(const CommonArguments& arguments, const Work& work, int64_t b) {
  return has_several_entries<Config> ? queries_of<typename Config::Layout>(arguments, b) : work.queries;
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
    return {entry(), head, query(), tiles_of_thread_0.is_full(position)};
  }

  /// Moves to the first tile of the current entry, or of the next entry that has any.
  __device__ void enter() {
    for (; place < work.batch_end; ++place) {
      const int64_t b = entry();
      const Rows queries = queries_of_entry<Config>(arguments, work, b);
      const SequencePair pair{b, first_head(), queries.count, work.keys.count};
      tiles = Config::Mask::of(arguments.params, pair)
                  .query_tiles(work.tile * Config::tile_keys, Config::tile_keys, Config::tile_queries);
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
};

}  // namespace gdpa::portable
