// The kernels whose CTAs own query tiles: the roles of the threads, and the layout of shared memory with its barriers.
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

}  // namespace gdpa::hopper
