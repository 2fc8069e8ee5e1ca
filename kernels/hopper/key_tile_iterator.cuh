// The key tiles of a CTA's query tiles, one after the other, as a consumer warpgroup visits them.
#pragma once

#include "hopper/tile_scheduler.cuh"

namespace gdpa::hopper {

/// A key tile of a query tile, and what a main loop needs to know of both, in registers.
template <class Config>
struct KeyTileIterator {
  using Tile = QueryTile<typename Config::Mask>;
  using TileQueue = QueryTileQueue<typename Config::Mask>;

  int key_tiles;  ///< of the query tile; 0: no more tiles
  int flags;      ///< QueryTile::keeps_keys and `partial`, in one register
  int number;     ///< of the query tile
  int key_tile = 0;
  PipelineState<Config::stages> state = {};

  __device__ __forceinline__ KeyTileIterator(const Tile& tile, int number_)
      : key_tiles(broadcast_lane_0(tile.keys.size())),
        flags(broadcast_lane_0(tile.flags & tile.keeps_keys)),
        number(number_) {
    if (key_tiles > 0) set_partial(tile);
  }

  /// K and V stay in their stages for the next query tile.
  __device__ __forceinline__ bool keeps_keys() const { return (flags & Tile::keeps_keys) != 0; }

  /// Whether some scores of the key tile are masked.
  __device__ __forceinline__ bool is_partial() const { return (flags & partial) != 0; }

  __device__ __forceinline__ bool ends() const { return key_tile + 1 == key_tiles; }

  /// The next key tile, which may be the first one of the next query tile. Waits for the queue.
  __device__ __forceinline__ KeyTileIterator after(const TileQueue& queue) const {
    KeyTileIterator next = *this;
    if (ends()) {
      const Tile& tile = queue.consumer_wait(number + 1);
      next = KeyTileIterator(tile, number + 1);
      if (next.key_tiles == 0) return next;
      next.state = broadcast_lane_0(tile.flags & tile.loads_keys) != 0 ? state.next() : state.before(key_tile);
    } else {
      ++next.key_tile;
      next.set_partial(queue[number]);
      next.state = state.next();
    }
    // The compiler does not see in the loop that these are uniform. It would keep them and all descriptors in vector
    // registers.
    next.number = broadcast_lane_0(next.number);
    next.state.stage = broadcast_lane_0(next.state.stage);
    return next;
  }

 private:
  static constexpr int partial = 4;
  static_assert((partial & Tile::keeps_keys) == 0, "one bit for each flag");

  __device__ __forceinline__ void set_partial(const Tile& tile) {
    const typename Config::Mask::Tiles keys = tile.keys;  // all loads start before the first comparison
    const int flag = broadcast_lane_0(keys.is_full(key_tile) ? 0 : partial);
    flags = (flags & ~partial) | flag;
  }
};

}  // namespace gdpa::hopper
