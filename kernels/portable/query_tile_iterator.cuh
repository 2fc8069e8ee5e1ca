// The tiles of queries that one CTA of the portable backward iterates over.
#pragma once

#include "common/sequence.cuh"
#include "common/work.cuh"

namespace gdpa::portable {

/// The queries of batch entry b. Unless the batch shares the keys, all tiles of a CTA's work are in one entry, whose
/// rows `work` has.
template <class Config>
__device__ Rows queries_of_entry(const CommonArguments& arguments, const Work& work, int64_t b) {
  return Config::keys_shared ? queries_of(arguments, b) : work.queries;
}

/// The coordinates of a tile of queries: batch entry, query head, first query. head is -1 after the last tile.
struct QueryTileCoord {
  int64_t b;
  int head;
  int query;
};

/// Iterates over the tiles of queries that attend to the CTA's tile of keys: over the batch entries of the work, the
/// query heads of the key head, and the tiles of each head.
template <class Config>
struct QueryTileIterator {
  const CommonArguments& arguments;
  const Work& work;
  QueryTileCoord at;
  int queries_begin;
  int queries_end;

  __device__ QueryTileIterator(const CommonArguments& arguments_, const Work& work_)
      : arguments(arguments_), work(work_) {
    at = {work.batch_begin, first_head(), 0};
    enter();
  }

  __device__ int group() const { return static_cast<int>(arguments.params.heads_q / arguments.params.heads_k); }
  __device__ int first_head() const { return work.head * group(); }

  /// Moves to the first tile of the current entry, or of the next entry that has any.
  __device__ void enter() {
    for (; at.b < work.batch_end; ++at.b) {
      const Rows queries = queries_of_entry<Config>(arguments, work, at.b);
      const MaskOfSequence mask{arguments.params.mask, queries.count, work.keys.count};
      const ValidRange valid = mask.queries_of(work.tile * Config::tile_keys, Config::tile_keys);
      queries_begin = valid.begin / Config::tile_queries * Config::tile_queries;
      queries_end = valid.begin + valid.count;
      at.query = queries_begin;
      if (valid.count > 0) return;
    }
    at.head = -1;
  }

  __device__ void next() {
    if (at.head < 0) return;
    at.query += Config::tile_queries;
    if (at.query < queries_end) return;
    at.query = queries_begin;
    if (++at.head < first_head() + group()) return;
    at.head = first_head();
    ++at.b;
    enter();
  }
};

}  // namespace gdpa::portable
