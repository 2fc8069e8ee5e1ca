// The key tiles of a CTA's query tiles, one after the other, as a consumer warpgroup visits them.
#pragma once

#include "hopper/arguments.cuh"
#include "pipeline/tile_scheduler.cuh"

namespace gdpa::hopper {

/// The list of the key tiles of a query tile, in the uniform registers of a warp. Both loads from shared memory start
/// at once: the compiler would otherwise load each member where it is needed, and the main loop would wait for each.
template <class Tiles>
__device__ __forceinline__ Tiles load_uniform(const Tiles& tiles) {
  static_assert(sizeof(Tiles) == 16, "two loads");
  struct {
    int words[4];
  } loaded;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%4];\nld.shared.v2.b32 {%2, %3}, [%4+8];"
               : "=r"(loaded.words[0]), "=r"(loaded.words[1]), "=r"(loaded.words[2]), "=r"(loaded.words[3])
               : "r"(shared_address(&tiles)));
#pragma unroll
  for (int& word : loaded.words) word = broadcast_lane_0(word);
  return __builtin_bit_cast(Tiles, loaded);  // a union would be in local memory if Tiles has 64-bit members
}

/// The type of a flag in a main loop: int or bool. A bool is in a register of 16 bits. The compiler spills this
/// register in some kernels with a dense bias or an addend, and it spills the int in some other kernels.
template <bool is_int>
struct LoopFlag {
  using Type = bool;
};
template <>
struct LoopFlag<true> {
  using Type = int;
};

/// A key tile of a query tile: the properties of both that a main loop needs, in registers.
template <class Config, class Flag = bool>
struct KeyTileIterator {
  using Tile = QueryTile<typename Config::Mask>;
  using Tiles = typename Config::Mask::Tiles;
  using TileQueue = QueryTileQueue<typename Config::Mask>;

  Tiles keys;      ///< of the query tile
  int key_tiles;   ///< their number; 0: no more tiles
  int keeps_keys;  ///< K and V stay in their stages for the next query tile
  int number;      ///< of the query tile
  int key_tile = 0;
  Flag full = true;  ///< no score is masked
  PipelineState<Config::stages> state = {};

  __device__ __forceinline__ KeyTileIterator(const Tile& tile, int number_)
      : keys(load_uniform(tile.keys)),
        key_tiles(keys.size()),
        keeps_keys(broadcast_lane_0(tile.flags & tile.keeps_keys)),
        number(number_) {
    if (key_tiles > 0) full = is_full(0);
  }

  __device__ __forceinline__ Flag is_full(int at) const {
    return static_cast<Flag>(broadcast_lane_0(static_cast<int>(keys.is_full(at))));
  }

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
      next.full = next.is_full(next.key_tile);
      next.state = state.next();
    }
    // The compiler does not see in the loop that these are uniform. It would keep them and all descriptors in vector
    // registers.
    next.number = broadcast_lane_0(next.number);
    next.state.stage = broadcast_lane_0(next.state.stage);
    return next;
  }
};

}  // namespace gdpa::hopper
