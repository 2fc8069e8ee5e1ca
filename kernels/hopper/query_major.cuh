// The kernels whose CTAs own query tiles, forward and parameter_gradients: the layout of shared memory with its
// barriers, and the producer threads that load Q, K and V by TMA. `Shared` is the storage of the kernel.
#pragma once

#include "hopper/tile.cuh"
#include "pipeline/tile_scheduler.cuh"
#include "pipeline/warpgroup.cuh"

namespace gdpa::hopper {

/// The stages of the operands of queries, `query_bytes` for each consumer warpgroup, then the stages of K and V, the
/// barriers, the queue of tiles and the range of tiles. A kernel has its own memory from `end` on.
template <class Config, int query_bytes_>
struct QueryMajorStorage {
  static constexpr int rows = warpgroup_rows;
  static constexpr int warpgroups = Config::tile_queries / rows;  ///< consumers
  static constexpr int load_threads = 3;                          ///< warps
  using TileQueue = QueryTileQueue<typename Config::Mask>;
  static constexpr int threads = (warpgroups + 1) * warpgroup_threads;
  static_assert(warpgroups == 1 || warpgroups == 2, "the registers of a CTA suffice for two consumer warpgroups");
  // A CTA has 65,536 registers; a thread has a multiple of 8.
  static constexpr int consumer_registers = warpgroups == 1 ? 240 : 224;
  static constexpr int producer_registers = 56;

  // Each warpgroup has its own queries.
  using QueryTile = SwizzledTile<rows, Config::head_dim>;
  using KeyTile = SwizzledTile<Config::tile_keys, Config::head_dim>;
  using ValueTile = SwizzledTile<Config::tile_keys, Config::head_dim_v>;

  static constexpr int query_bytes = query_bytes_;
  static constexpr int keys_at = Config::query_stages * warpgroups * query_bytes;
  static constexpr int values_at = keys_at + Config::stages * KeyTile::bytes;
  static constexpr int key_barriers_at = values_at + Config::stages * ValueTile::bytes;
  static constexpr int value_barriers_at = key_barriers_at + Pipeline<Config::stages>::bytes;
  static constexpr int query_barriers_at = value_barriers_at + Pipeline<Config::stages>::bytes;
  static constexpr int queue_at = query_barriers_at + warpgroups * Pipeline<Config::query_stages>::bytes;
  static constexpr int tile_range_at = queue_at + TileQueue::bytes;
  static constexpr int end = tile_range_at + static_cast<int>(sizeof(TileRange));

  unsigned char* memory;

  __device__ unsigned at(int offset) const { return shared_address(memory) + static_cast<unsigned>(offset); }
  /// Q of query tile `number`.
  __device__ QueryTile query(int number, int warpgroup) const {
    return {at((stage_of<Config::query_stages>(number) * warpgroups + warpgroup) * query_bytes)};
  }
  __device__ KeyTile keys() const { return {at(keys_at)}; }
  __device__ ValueTile values() const { return {at(values_at)}; }

  __device__ Pipeline<Config::stages> key_pipeline() const { return {at(key_barriers_at)}; }
  __device__ Pipeline<Config::stages> value_pipeline() const { return {at(value_barriers_at)}; }
  __device__ Pipeline<Config::query_stages> query_pipeline(int warpgroup) const {
    return {at(query_barriers_at + warpgroup * Pipeline<Config::query_stages>::bytes)};
  }
  __device__ TileQueue tiles() const { return TileQueue::at(memory + queue_at); }

  /// The CTA's range of tiles, and the totals of the warps that compute it, in the memory of the queue.
  __device__ TileRange& tile_range() const { return *reinterpret_cast<TileRange*>(memory + tile_range_at); }
  __device__ WorkTotals* totals_of_warps() const {
    static_assert(threads / 32 * sizeof(WorkTotals) <= TileQueue::barriers_at,
                  "accumulators have the room of the tiles");
    return reinterpret_cast<WorkTotals*>(memory + queue_at);
  }

  __device__ void initialise() const {
    key_pipeline().initialise(1, warpgroups);
    value_pipeline().initialise(1, warpgroups);
    for (int warpgroup = 0; warpgroup < warpgroups; ++warpgroup) query_pipeline(warpgroup).initialise(1, 1);
    tiles().initialise(1, warpgroups + load_threads);
    fence_barrier_init();
  }
};

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

/// Calls start(tile, number) for each query tile, and load(tile, offset, iteration) for each key tile that has to be
/// loaded, `offset` rows after the row of the origin of K. By one thread, which is a consumer of the queue.
template <class Config, class Start, class Load>
__device__ void for_all_loads(const QueryTileQueue<typename Config::Mask>& queue, Start start, Load load) {
  int iteration = 0;
  for (int number = 0;; ++number) {
    const QueryTile<typename Config::Mask>& tile = queue.consumer_wait(number);
    if (tile.keys.size() == 0) return;
    start(tile, number);
    const int count = tile.is(tile.loads_keys) ? tile.keys.size() : 0;
    for (int i = 0; i < count; ++i, ++iteration) load(tile, tile.keys.row_offset(i, Config::tile_keys), iteration);
    queue.consumer_release(number);
  }
}

/// Loads Q of each query tile, for each warpgroup. load_more(tile, number, warpgroup, row, barrier) loads the other
/// operands of the queries from row `row` of the tile on. `bytes` are the bytes of all of them.
template <class Config, class Shared, class LoadMore>
__device__ void load_queries(const QueryMajorArguments& arguments, const Shared& shared, int bytes,
                             LoadMore load_more) {
  const auto load = [&](const auto& tile, int number) {
    for (int warpgroup = 0; warpgroup < Shared::warpgroups; ++warpgroup) {
      shared.query_pipeline(warpgroup).producer_acquire(number);
      const Barrier full = shared.query_pipeline(warpgroup).full_of(number);
      const int row = warpgroup * Shared::rows;
      if (tile.first_query + row < tile.length_q) {
        full.arrive_and_expect(bytes);
        shared.query(number, warpgroup)
            .load(arguments.query.map, full.address, tile.head, Config::Layout::after(tile.query, row));
        load_more(tile, number, warpgroup, row, full.address);
      } else {
        full.arrive();  // the stage keeps old data; no result of these rows is used
      }
    }
  };
  for_all_loads<Config>(shared.tiles(), load, [](const auto&, int, int) {});
}

/// Loads the tiles of K or V into their stages, which begin at `stages`. `y_of` gives the map coordinate y of the keys
/// of a tile. V has a thread of its own, because its stages are released later than the stages of K.
template <class Config, class Tile, class Shared, class YOf>
__device__ void load_key_tiles(const QueryMajorArguments& arguments, const Shared& shared, const MappedOperand& operand,
                               const Tile& stages, const Pipeline<Config::stages>& pipeline, YOf y_of) {
  const auto nothing = [](const auto&, int) {};
  for_all_loads<Config>(shared.tiles(), nothing, [&](const auto& tile, int offset, int iteration) {
    const auto rows =
        Config::Layout::template key_rows<Config::tile_keys>(operand, arguments.common.params.keys, tile, offset);
    pipeline.producer_acquire(iteration);
    const Barrier full = pipeline.full_of(iteration);
    full.arrive_and_expect(Tile::bytes);
    rows.load(stages.stage(stage_of<Config::stages>(iteration)), operand, full.address, tile.key_head,
              {tile.key.x, y_of(tile)});
  });
}

/// The roles of the producer warpgroup: visit_empty is of schedule_tiles(), and `query_bytes` and load_more are of
/// load_queries().
template <class Config, class Shared, class VisitEmpty, class LoadMore>
__device__ __forceinline__ void run_query_major_producers(const QueryMajorArguments& arguments, const Shared& shared,
                                                          VisitEmpty visit_empty, int query_bytes, LoadMore load_more) {
  run_producer_warpgroup([&] { schedule_tiles<Config>(arguments, shared.tile_range(), shared.tiles(), visit_empty); },
                         [&] { load_queries<Config>(arguments, shared, query_bytes, load_more); },
                         [&] {
                           load_key_tiles<Config>(arguments, shared, arguments.key, shared.keys(),
                                                  shared.key_pipeline(), [](const auto& tile) { return tile.key.y; });
                         },
                         [&] {
                           load_key_tiles<Config>(arguments, shared, arguments.value, shared.values(),
                                                  shared.value_pipeline(),
                                                  [](const auto& tile) { return tile.value_y; });
                         });
}

}  // namespace gdpa::hopper
