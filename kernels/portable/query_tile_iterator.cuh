// The tiles of queries that one CTA of the portable backward iterates over.
#pragma once

#include "common/sequence.cuh"
#include "common/work.cuh"

namespace gdpa::portable {

/// The queries of batch entry b. Unless the batch shares the keys, all tiles of a CTA's work are in one entry, whose
/// rows `work` has.
template <class Config>
__device__ Rows queries_of_entry(const CommonArguments& arguments, const Work& work, int64_t b) {
  return Config::keys_shared ? queries_of<typename Config::Layout>(arguments, b) : work.queries;
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
  QueryTileCoord at;
  typename Config::Mask::Tiles tiles{};  ///< of the current entry
  int position = 0;                      ///< of the current tile in the list

  __device__ QueryTileIterator(const CommonArguments& arguments_, const Work& work_)
      : arguments(arguments_), work(work_) {
    at = {work.batch_begin, first_head(), 0, false};
    enter();
  }

  __device__ int group() const { return static_cast<int>(arguments.params.heads_q / arguments.params.heads_k); }
  __device__ int first_head() const { return work.head * group(); }

  /// Moves to the first tile of the current entry, or of the next entry that has any.
  __device__ void enter() {
    for (; at.b < work.batch_end; ++at.b) {
      const Rows queries = queries_of_entry<Config>(arguments, work, at.b);
      const SequencePair pair{at.b, first_head(), queries.count, work.keys.count};
      tiles = Config::Mask::of(arguments.params, pair)
                  .query_tiles(work.tile * Config::tile_keys, Config::tile_keys, Config::tile_queries);
      if (tiles.size() > 0) return go_to(0);
    }
    at.head = -1;
  }

  __device__ void go_to(int next_position) {
    position = next_position;
    at.query = tiles.first_row + tiles.row_offset(position, Config::tile_queries);
    at.is_full = tiles.is_full(position);
  }

  __device__ void next() {
    if (at.head < 0) return;
    if (position + 1 < tiles.size()) return go_to(position + 1);
    go_to(0);
    if (++at.head < first_head() + group()) return;
    at.head = first_head();
    ++at.b;
    enter();
  }
};

}  // namespace gdpa::portable
