// The tile scheduler of the kernels whose CTAs own query tiles. One warp takes the query tiles of the CTA
// (tile_range.cuh), up to 16 at a time, one for each lane. It finds the keys that each tile attends to, and puts the
// tiles into a queue in shared memory. If a tile attends to the same keys as the previous tile, and these fit into the
// stages, K and V stay in shared memory, and Q streams past them.
#pragma once

#include "common/tile.cuh"
#include "common/work.cuh"
#include "pipeline/arguments.cuh"
#include "pipeline/barrier.cuh"
#include "pipeline/tile_range.cuh"
#include "pipeline/tile_round.cuh"
#include "pipeline/warpgroup.cuh"

namespace gdpa::pipeline {

/// The description of work: a query tile of one head, and the list of the key tiles that it attends to.
template <class Mask>
struct alignas(8) QueryTile {
  enum : int {
    loads_keys = 1,  ///< otherwise K and V of the previous tile are used again
    keeps_keys = 2   ///< the next tile uses K and V again
  };
  typename Mask::Tiles keys;  ///< empty: no more query tiles
  int flags;
  int b;  ///< the batch entry
  int first_query;
  int length_q;
  int length_k;
  int head;
  int key_head;
  float out_scale;
  MapOrigin query;  ///< of the tile's first row
  MapOrigin key;    ///< of row keys.first_row
  int output_y;     ///< of QueryMajorArguments::output, with x of the query
  int value_y;      ///< with x of the key

  __device__ bool is(int flag) const { return (flags & flag) != 0; }
  __device__ SequencePair pair(const Params& params) const {
    const int64_t first_row_q = first_row_at(params.queries, query, length_q, b);
    const int64_t first_row_k = first_row_at(params.keys, key, length_k, b);
    return {b, head, length_q, length_k, first_row_q, first_row_k};
  }
};

/// From the tile scheduler to the producer threads and the consumers. The queue has room for two rounds of the
/// scheduler.
template <class Mask>
using QueryTileQueue = Queue<QueryTile<Mask>, 2 * most_tiles_at_once>;

/// Writes the description of the tile of `work`, which attends to the key tiles `keys`.
template <class Config, class Mask>
__device__ void describe_tile(QueryTile<Mask>& tile, const QueryMajorArguments& arguments, const Work& work,
                              const typename Mask::Tiles& keys) {
  using Layout = typename Config::Layout;
  const Params& params = arguments.common.params;
  const int first_query = work.tile * Config::tile_queries;
  const int64_t b = work.batch_begin;
  tile.keys = keys;
  tile.b = static_cast<int>(b);
  tile.first_query = first_query;
  tile.length_q = work.queries.count;
  tile.length_k = work.keys.count;
  tile.head = work.head;
  tile.key_head = work.key_head;
  tile.out_scale = Config::Epilogue::scale_of(arguments.common, pair_of(params, work));
  tile.query = Layout::origin_of(arguments.query, params.queries, work.queries, b, first_query);
  tile.output_y = Layout::output_origin_of(arguments.output, params, work.queries, b, first_query).y;
  tile.key = Layout::origin_of(arguments.key, params.keys, work.keys, b, keys.first_row);
  tile.value_y = Layout::origin_of(arguments.value, params.keys, work.keys, b, keys.first_row).y;
}

/// Whether the tile of a lane attends to the same keys as the tile of a lower lane, and these fit into the stages.
/// `tiles` has a bit for each lane with a tile.
template <class Config>
__device__ bool reuses_keys(const QueryMajorArguments& arguments, const Work& work,
                            const typename Config::Mask::Tiles& keys, unsigned tiles) {
  const bool shared = !Config::Layout::is_jagged(arguments.common.params.keys) && arguments.key.batch_step == 0 &&
                      arguments.value.batch_step == 0;
  const int64_t entry = work.batch_begin;
  const bool is_mapped = is_in_batch(arguments.common, entry);
  const int b = shared ? 0 : static_cast<int>(is_mapped ? arguments.common.params.keys.sequence(entry) : entry);
  const unsigned before = tiles & ((1u << thread_in_warpgroup() % 32) - 1);
  const int source = before == 0 ? 0 : 31 - __clz(static_cast<int>(before));
  const auto is_same = [source](int value) { return __shfl_sync(0xffffffffu, value, source) == value; };
  // Every lane takes part in every exchange.
  const bool same_b = is_same(b), same_head = is_same(work.key_head), same_tiles = keys.has_same_tiles(is_same);
  return before != 0 && keys.size() <= Config::stages && same_b && same_head && same_tiles;
}

/// The query tiles in the queue that the other warps have not released. With a dynamic order, the scheduler puts few
/// tiles into the queue, because the CTA that takes the last tiles of the batch should not have a long queue.
template <class Config>
class TilesAhead {
 public:
  __device__ explicit TilesAhead(const QueryTileQueue<typename Config::Mask>& queue) : queue_(queue) {}

  /// Counts tiles that were put into the queue, with their key tiles.
  __device__ void add(int tiles, int key_tiles) {
    key_tiles_ += key_tiles;
    end_ += tiles;
  }

  /// Waits until the consumers have fewer than enough_key_tiles key tiles left in the queue. The oldest query tile that
  /// they have not released does not count, because it may be nearly complete.
  __device__ void wait() {
    while (begin_ < end_) {
      const int key_tiles_after_first = key_tiles_ - queue_[begin_].keys.size();
      if (key_tiles_after_first < enough_key_tiles) return;
      queue_.producer_acquire(begin_ + queue_.slots);
      key_tiles_ = key_tiles_after_first;
      ++begin_;
    }
  }

 private:
  /// Consumers release a query tile one key tile after its last key tile, and they read the queue two key tiles ahead.
  /// Of the 8 key tiles, 5 are then left. These take about 10,000 cycles, and the search for the next tile takes less.
  static constexpr int enough_key_tiles = 8;

  const QueryTileQueue<typename Config::Mask>& queue_;
  int begin_ = 0, end_ = 0;  ///< numbers of the tiles
  int key_tiles_ = 0;
};

/// The tile scheduler warp: fills the queue with the tiles of the CTA. A tile without keys ends the queue. Calls
/// visit_empty(work, lane) for each tile of the batch without keys, which the lane has found. By the warp.
template <class Config, class VisitEmpty>
__device__ void schedule_tiles(const QueryMajorArguments& arguments, const TileRange& tile_range,
                               const QueryTileQueue<typename Config::Mask>& queue, VisitEmpty visit_empty) {
  using Mask = typename Config::Mask;
  const Params& params = arguments.common.params;
  TileIterator<Config> iterator(arguments, tile_range);
  TilesAhead<Config> ahead(queue);
  int scheduled = 0;
  unsigned reuses = 0;  // TileRound::next_reuses of the round before
  // Consecutive tiles are found quickly. With the strided order, the first rounds take few tiles, because the other
  // warps wait for them.
  const unsigned most = iterator.order() == TileOrder::dynamic ? arguments.tiles.taken_at_once : most_tiles_at_once;
  for (unsigned count = iterator.order() == TileOrder::strided ? 1 : most;; count = min(2 * count, most)) {
    if (iterator.order() == TileOrder::dynamic) ahead.wait();
    const Work work = iterator.take(count);
    const unsigned found = __ballot_sync(0xffffffffu, work.exists);
    if (found == 0) break;
    typename Mask::Tiles keys{};
    if (work.exists) {
      keys = Mask::of(params, pair_of(params, work))
                 .key_tiles(work.tile * Config::tile_queries, Config::tile_queries, Config::tile_keys);
    }
    __syncwarp();
    // The lane is read in each round. Otherwise its masks stay in registers, and some kernels spill.
    const auto lane = static_cast<int>(thread_in_warpgroup() % 32);
    const unsigned tiles = __ballot_sync(0xffffffffu, keys.size() > 0);
    const unsigned reusing = __ballot_sync(0xffffffffu, reuses_keys<Config>(arguments, work, keys, tiles));
    const TileRound round = tile_round(count, found, tiles, reusing, iterator.order() == TileOrder::contiguous, reuses);
    if (round.gives_back) iterator.give_back();
    reuses = round.next_reuses;
    if (round.has(lane) && keys.size() > 0) {
      const int number = scheduled + __popc(tiles & ((1u << lane) - 1));
      queue.producer_acquire(number);
      QueryTile<Mask>& tile = queue[number];
      describe_tile<Config>(tile, arguments, work, keys);
      tile.flags = (round.loads_keys(lane) ? tile.loads_keys : 0) | (round.keeps_keys(lane) ? tile.keeps_keys : 0);
      queue.producer_commit(number);
    }
    __syncwarp();
    if (iterator.order() == TileOrder::dynamic) {
      const int key_tiles = sum_up_to_lane(keys.size());
      ahead.add(__popc(tiles), __shfl_sync(0xffffffffu, key_tiles, 31));
    }
    scheduled += __popc(round.queued());
    unsigned left = __ballot_sync(0xffffffffu, round.has(lane) && work.exists && keys.size() == 0);
    for (; left != 0; left &= left - 1) visit_empty(work, __ffs(static_cast<int>(left)) - 1);
  }
  queue.producer_acquire(scheduled);
  if (lane_index() == 0) {
    queue[scheduled].keys = {};
    queue.producer_commit(scheduled);
  }
}

}  // namespace gdpa::pipeline
