// The dealer: one warp takes the CTA's tiles of queries (share.cuh), 16 of them at a time, one a lane, finds the keys
// that each meets, and lays them into a ring in shared memory, from which the other warps read. A tile that meets no
// key is zeros, which this warp writes itself. A tile that meets the same keys as the one before finds them in the
// buffers, if they fit: K and V stay, and Q streams past them.
#pragma once

#include "common/tile.cuh"
#include "common/work.cuh"
#include "hopper/arguments.cuh"
#include "hopper/ring.cuh"
#include "hopper/rows.cuh"
#include "hopper/share.cuh"
#include "hopper/warpgroup.cuh"

namespace gdpa::hopper {

/// A tile of queries of one head, and the tiles of keys that it meets.
struct Tile {
  int key_tiles;   ///< 0: there are no more tiles
  int loads;       ///< 0: K and V are those of the tile before, and lie in the buffers
  int keeps;       ///< 1: the next tile finds K and V in the buffers
  int full_begin;  ///< tiles of keys [full_begin, full_end), counted from the first, need no test of their scores
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

/// Tiles on their way from the warp that finds them: to the warp that loads and to each warpgroup that computes. Two
/// rounds fit.
constexpr int tiles_at_once = 16;
using TileRing = Ring<Tile, 2 * tiles_at_once>;

/// Where a tile from `row` on lies in an operand's map.
__device__ inline MapOrigin origin_of(const MappedOperand& operand, const Sequences& side, const Rows& rows, int64_t b,
                                      int row) {
  if (side.cumulative == nullptr) return {row, static_cast<int>(b) * operand.batch_step};
  return {operand.extent - rows.count + row, static_cast<int>(rows.begin) + rows.count};
}

/// Elements from the operand's data to the row of a head that lies there in its map.
__device__ inline int64_t offset_of(const MappedOperand& mapped, const Operand& operand, const Sequences& side,
                                    const MapOrigin& at, int head) {
  const bool packed = side.cumulative != nullptr;
  const int64_t rows = packed ? int64_t{at.x} - mapped.extent + at.y : at.x;
  return rows * operand.row_stride + (packed ? 0 : at.y * operand.batch_stride) + head * operand.head_stride;
}

/// Describes the tile of `work`, which meets the keys `met`.
template <class Config>
__device__ void describe_tile(Tile& tile, const ForwardArguments& arguments, const Work& work, const Kept& met) {
  constexpr int keys = Config::tile_keys;
  const Params& params = arguments.common.params;
  const MaskOfSequence mask{params.mask, work.queries.count, work.keys.count};
  const int first_query = work.tile * Config::tile_queries;
  const int first_key = met.begin / keys * keys;
  const int key_tiles = (met.begin + met.count - first_key + keys - 1) / keys;
  tile.key_tiles = key_tiles;
  tile.first_query = first_query;
  tile.first_key = first_key;
  tile.length_q = work.queries.count;
  tile.length_k = work.keys.count;
  // Queries beyond the sequence are zeros that nobody stores: only keys and the mask make a tile less than full.
  const int valid = min(Config::tile_queries, work.queries.count - first_query);
  const auto is_full = [&](int i) { return mask.is_full(first_query, valid, first_key + i * keys, keys); };
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

/// Zeros for the tile of the work that lane `source` holds, by the warp.
template <class Config>
__device__ void write_zeros(const Operand& output, const Work& work, int source) {
  const int first_query = work.tile * Config::tile_queries;
  const int64_t offset =
      __shfl_sync(0xffffffffu, element_offset(output, work.queries, work.batch_begin, first_query, work.head), source);
  const int rows = __shfl_sync(0xffffffffu, min(Config::tile_queries, work.queries.count - first_query), source);
  write_zero_rows<typename Config::Element, Config::head_dim_v>(
      static_cast<typename Config::Element::Storage*>(output.data) + offset, output.row_stride, rows);
}

/// Whether a lane's tile meets exactly the keys of the tile before it, all of which the buffers hold. `tiles` says
/// which lanes have one; the first of them always loads.
template <class Config>
__device__ bool reuses_keys(const ForwardArguments& arguments, const Work& work, const Kept& met, unsigned tiles) {
  constexpr int keys = Config::tile_keys;
  const bool shared = arguments.common.params.keys.cumulative == nullptr && arguments.key.batch_step == 0 &&
                      arguments.value.batch_step == 0;
  const int b = shared ? 0 : static_cast<int>(work.batch_begin);
  const int first = met.begin / keys;
  const int end = (met.begin + met.count + keys - 1) / keys;
  const unsigned before = tiles & ((1u << lane_index()) - 1);
  const int source = before == 0 ? 0 : 31 - __clz(static_cast<int>(before));
  const auto is_same = [source](int value) { return __shfl_sync(0xffffffffu, value, source) == value; };
  // Every lane takes part in every exchange.
  const bool same_b = is_same(b), same_head = is_same(work.key_head), same_first = is_same(first),
             same_end = is_same(end);
  return before != 0 && end - first <= Config::stages && same_b && same_head && same_first && same_end;
}

/// The work of one warp: fills the ring with the tiles of the CTA's share, and ends it with a tile of no keys.
template <class Config>
__device__ void deal_tiles(const ForwardArguments& arguments, const Span& span, const TileRing& ring) {
  const Params& params = arguments.common.params;
  Share<Config> share(arguments, span);
  const int lane = lane_index();
  int dealt = 0;
  // The tiles of a run are close together; else few are taken at first, which the other warps wait for.
  for (unsigned count = share.in_runs() ? tiles_at_once : 1;; count = min(2 * count, unsigned{tiles_at_once})) {
    const Work work = share.take(count);
    if (__ballot_sync(0xffffffffu, work.exists) == 0) break;
    Kept met{0, 0};
    if (work.exists) {
      met = MaskOfSequence{params.mask, work.queries.count, work.keys.count}.keys_of(work.tile * Config::tile_queries,
                                                                                     Config::tile_queries);
    }
    __syncwarp();
    const unsigned tiles = __ballot_sync(0xffffffffu, met.count > 0);
    const unsigned reusing = __ballot_sync(0xffffffffu, reuses_keys<Config>(arguments, work, met, tiles));
    if (met.count > 0) {
      const int number = dealt + __popc(tiles & ((1u << lane) - 1));
      ring.wait_free(number);
      Tile& tile = ring[number];
      describe_tile<Config>(tile, arguments, work, met);
      const int next = __ffs(static_cast<int>(tiles & ~((2u << lane) - 1))) - 1;
      tile.loads = (reusing >> lane & 1) == 0;
      tile.keeps = next >= 0 && (reusing >> next & 1) != 0;
      ring.publish(number);
    }
    __syncwarp();
    dealt += __popc(tiles);
    for (unsigned left = __ballot_sync(0xffffffffu, work.exists && met.count == 0); left != 0; left &= left - 1) {
      write_zeros<Config>(params.output, work, __ffs(left) - 1);
    }
  }
  ring.wait_free(dealt);
  if (lane == 0) {
    ring[dealt].key_tiles = 0;
    ring.publish(dealt);
  }
}

}  // namespace gdpa::hopper
