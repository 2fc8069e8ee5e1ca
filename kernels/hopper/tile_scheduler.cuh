// The tile scheduler of forward. One warp takes the query tiles of the CTA (tile_range.cuh), 16 at a time, one for each
// lane. It finds the keys that each tile attends to, and puts the tiles into a queue in shared memory. Output rows
// without keys are zero, and this warp writes them. If a tile attends to the same keys as the previous tile, and these
// fit into the stages, K and V stay in shared memory, and Q streams past them.
#pragma once

#include "common/tile.cuh"
#include "common/work.cuh"
#include "hopper/arguments.cuh"
#include "hopper/queue.cuh"
#include "hopper/rows.cuh"
#include "hopper/tile_range.cuh"
#include "hopper/warpgroup.cuh"

namespace gdpa::hopper {

/// A query tile of one head, and the key tiles that it attends to.
struct Tile {
  int key_tiles;   ///< 0: no more tiles
  int loads_keys;  ///< 0: K and V of the previous tile are used again
  int keeps_keys;  ///< 1: the next tile uses K and V again
  int full_begin;  ///< key tiles [full_begin, full_end), counted from the first one, are full
  int full_end;
  int first_query;
  int first_key;
  int length_q;
  int length_k;
  int head;
  int key_head;
  float out_scale;
  MapOrigin query;  ///< of the tile's first row
  MapOrigin key;    ///< of the first key
  int output_y;     ///< with x of the query
  int value_y;      ///< with x of the key
};

/// From the tile scheduler to the producer threads and the consumers. The queue has room for two rounds of the
/// scheduler.
constexpr int tiles_at_once = 16;
using TileQueue = Queue<Tile, 2 * tiles_at_once>;

/// The map coordinates of row `row` of a batch entry.
__device__ inline MapOrigin origin_of(const MappedOperand& operand, const Sequences& role, const Rows& rows, int64_t b,
                                      int row) {
  if (role.cumulative == nullptr) return {row, static_cast<int>(b) * operand.batch_step};
  return {operand.extent - rows.count + row, static_cast<int>(rows.begin) + rows.count};
}

/// The offset in elements, from the operand's data, of the row of a head at these map coordinates.
__device__ inline int64_t offset_of(const MappedOperand& mapped, const Operand& operand, const Sequences& role,
                                    const MapOrigin& at, int head) {
  const bool packed = role.cumulative != nullptr;
  const int64_t rows = packed ? int64_t{at.x} - mapped.extent + at.y : at.x;
  return rows * operand.row_stride + (packed ? 0 : at.y * operand.batch_stride) + head * operand.head_stride;
}

/// Writes the description of the tile of `work`, which attends to the keys `valid`.
template <class Config>
__device__ void describe_tile(Tile& tile, const ForwardArguments& arguments, const Work& work,
                              const ValidRange& valid) {
  constexpr int keys = Config::tile_keys;
  const Params& params = arguments.common.params;
  const MaskOfSequence mask{params.mask, work.queries.count, work.keys.count};
  const int first_query = work.tile * Config::tile_queries;
  const int first_key = valid.begin / keys * keys;
  const int key_tiles = (valid.begin + valid.count - first_key + keys - 1) / keys;
  tile.key_tiles = key_tiles;
  tile.first_query = first_query;
  tile.first_key = first_key;
  tile.length_q = work.queries.count;
  tile.length_k = work.keys.count;
  // Queries beyond the sequence are zeros and are never stored. Only keys and the mask make a tile partial.
  const int rows = min(Config::tile_queries, work.queries.count - first_query);
  const auto is_full = [&](int i) { return mask.is_full(first_query, rows, first_key + i * keys, keys); };
  int begin = 0, end = key_tiles;
  while (begin < end && !is_full(begin)) ++begin;
  while (begin < end && !is_full(end - 1)) --end;
  tile.full_begin = begin;
  tile.full_end = end;
  tile.head = work.head;
  tile.key_head = work.key_head;
  const int64_t b = work.batch_begin;
  tile.out_scale = out_scale_of(arguments.common, b, work.queries, work.keys);
  tile.query = origin_of(arguments.query, params.queries, work.queries, b, first_query);
  tile.output_y = origin_of(arguments.output, params.queries, work.queries, b, first_query).y;
  tile.key = origin_of(arguments.key, params.keys, work.keys, b, first_key);
  tile.value_y = origin_of(arguments.value, params.keys, work.keys, b, first_key).y;
}

/// Writes zeros for the tile of lane `source`. By the warp.
template <class Config>
__device__ void write_zeros(const Operand& output, const Work& work, int source) {
  const int first_query = work.tile * Config::tile_queries;
  const int64_t offset =
      __shfl_sync(0xffffffffu, element_offset(output, work.queries, work.batch_begin, first_query, work.head), source);
  const int rows = __shfl_sync(0xffffffffu, min(Config::tile_queries, work.queries.count - first_query), source);
  write_zero_rows<typename Config::Element, Config::head_dim_v>(
      static_cast<typename Config::Element::Storage*>(output.data) + offset, output.row_stride, rows);
}

/// Whether the tile of a lane attends to the same keys as the previous tile, and these fit into the stages. `tiles` has
/// a bit for each lane with a tile. The first of these lanes always loads.
template <class Config>
__device__ bool reuses_keys(const ForwardArguments& arguments, const Work& work, const ValidRange& valid,
                            unsigned tiles) {
  constexpr int keys = Config::tile_keys;
  const bool shared = arguments.common.params.keys.cumulative == nullptr && arguments.key.batch_step == 0 &&
                      arguments.value.batch_step == 0;
  const int b = shared ? 0 : static_cast<int>(work.batch_begin);
  const int first = valid.begin / keys;
  const int end = (valid.begin + valid.count + keys - 1) / keys;
  const unsigned before = tiles & ((1u << lane_index()) - 1);
  const int source = before == 0 ? 0 : 31 - __clz(static_cast<int>(before));
  const auto is_same = [source](int value) { return __shfl_sync(0xffffffffu, value, source) == value; };
  // Every lane takes part in every exchange.
  const bool same_b = is_same(b), same_head = is_same(work.key_head), same_first = is_same(first),
             same_end = is_same(end);
  return before != 0 && end - first <= Config::stages && same_b && same_head && same_first && same_end;
}

/// The tile scheduler warp: fills the queue with the tiles of the CTA. A tile without keys ends the queue.
template <class Config>
__device__ void schedule_tiles(const ForwardArguments& arguments, const TileRange& tile_range, const TileQueue& queue) {
  const Params& params = arguments.common.params;
  TileIterator<Config> iterator(arguments, tile_range);
  const int lane = lane_index();
  int scheduled = 0;
  // Contiguous tiles are found quickly. Otherwise the first rounds take few tiles, because the other warps wait for them.
  for (unsigned count = iterator.contiguous_tiles() ? tiles_at_once : 1;;
       count = min(2 * count, unsigned{tiles_at_once})) {
    const Work work = iterator.take(count);
    if (__ballot_sync(0xffffffffu, work.exists) == 0) break;
    ValidRange valid{0, 0};
    if (work.exists) {
      valid = MaskOfSequence{params.mask, work.queries.count, work.keys.count}.keys_of(work.tile * Config::tile_queries,
                                                                                       Config::tile_queries);
    }
    __syncwarp();
    const unsigned tiles = __ballot_sync(0xffffffffu, valid.count > 0);
    const unsigned reusing = __ballot_sync(0xffffffffu, reuses_keys<Config>(arguments, work, valid, tiles));
    if (valid.count > 0) {
      const int number = scheduled + __popc(tiles & ((1u << lane) - 1));
      queue.producer_acquire(number);
      Tile& tile = queue[number];
      describe_tile<Config>(tile, arguments, work, valid);
      const int next = __ffs(static_cast<int>(tiles & ~((2u << lane) - 1))) - 1;
      tile.loads_keys = (reusing >> lane & 1) == 0;
      tile.keeps_keys = next >= 0 && (reusing >> next & 1) != 0;
      queue.producer_commit(number);
    }
    __syncwarp();
    scheduled += __popc(tiles);
    for (unsigned left = __ballot_sync(0xffffffffu, work.exists && valid.count == 0); left != 0; left &= left - 1) {
      write_zeros<Config>(params.output, work, __ffs(left) - 1);
    }
  }
  queue.producer_acquire(scheduled);
  if (lane == 0) {
    queue[scheduled].key_tiles = 0;
    queue.producer_commit(scheduled);
  }
}

}  // namespace gdpa::hopper
