// Forward: the roles of the threads, the layout of shared memory, and its barriers.
#pragma once

#include "hopper/tile.cuh"
#include "hopper/tile_scheduler.cuh"
#include "hopper/warpgroup.cuh"

namespace gdpa::hopper {

/// Guards that only infinite scores need cost an instruction for each score. The first pass over the CTA's tiles leaves
/// them out. If O has a NaN, which infinite scores can cause, a second pass evaluates f with guards. Each pass has its
/// own code, because a branch in every key tile would cost as much as the guards.
enum class Scores { assumed_finite, bounded };
enum class Pass : int { first, first_that_found_nan, second };

/// The roles of the threads, and the layout of shared memory.
template <class Config>
struct ForwardStorage {
  static constexpr int rows = warpgroup_rows;
  static constexpr int warpgroups = Config::tile_queries / rows;  ///< consumers
  static constexpr int load_threads = 3;                          ///< warps
  using TileQueue = QueryTileQueue<typename Config::Mask>;
  static constexpr int threads = (warpgroups + 1) * warpgroup_threads;
  static_assert(warpgroups == 1 || warpgroups == 2, "ping-pong order needs two consumer warpgroups");
  // A CTA has 65,536 registers; a thread has a multiple of 8.
  static constexpr int consumer_registers = warpgroups == 1 ? 240 : 224;
  static constexpr int producer_registers = 56;

  // Each warpgroup has its own Q and O.
  using QueryTile = SwizzledTile<rows, Config::head_dim>;
  using KeyTile = SwizzledTile<Config::tile_keys, Config::head_dim>;
  using ValueTile = SwizzledTile<Config::tile_keys, Config::head_dim_v>;
  using OutputTile = SwizzledTile<rows, Config::head_dim_v>;

  static constexpr bool takes_output = Config::query_in_registers && OutputTile::bytes > QueryTile::bytes;
  static constexpr int query_bytes = takes_output ? OutputTile::bytes : QueryTile::bytes;
  static constexpr int keys_at = Config::query_stages * warpgroups * query_bytes;
  static constexpr int values_at = keys_at + Config::stages * KeyTile::bytes;
  static constexpr int barriers_at = values_at + Config::stages * ValueTile::bytes;
  static constexpr int stage_barriers = Barriers<Config::stages>::bytes;
  static constexpr int query_barriers = Barriers<Config::query_stages>::bytes;
  static constexpr int queries_at = barriers_at + 4 * stage_barriers;
  static constexpr int queue_at = queries_at + 2 * warpgroups * query_barriers;
  static constexpr int pass_barrier_at = queue_at + TileQueue::bytes;
  static constexpr int pass_at = pass_barrier_at + Barrier::bytes;
  static constexpr int tile_range_at = pass_at + static_cast<int>(sizeof(Pass));
  static constexpr int shared_bytes = tile_range_at + static_cast<int>(sizeof(TileRange));
  static_assert(shared_bytes <= 227 * 1024, "more than a CTA can have");

  unsigned char* memory;

  __device__ unsigned at(int offset) const { return shared_address(memory) + static_cast<unsigned>(offset); }
  /// Q of query tile `number`.
  __device__ QueryTile query(int number, int warpgroup) const {
    return {at((stage_of<Config::query_stages>(number) * warpgroups + warpgroup) * query_bytes)};
  }
  /// O of a tile uses the memory of Q of the next tile, which is in registers then.
  __device__ OutputTile output(int number, int warpgroup) const { return {query(number + 1, warpgroup).base}; }
  __device__ KeyTile keys() const { return {at(keys_at)}; }
  __device__ ValueTile values() const { return {at(values_at)}; }

  __device__ Barriers<Config::stages> key_full() const { return {at(barriers_at)}; }
  __device__ Barriers<Config::stages> key_empty() const { return {at(barriers_at + stage_barriers)}; }
  __device__ Barriers<Config::stages> value_full() const { return {at(barriers_at + 2 * stage_barriers)}; }
  __device__ Barriers<Config::stages> value_empty() const { return {at(barriers_at + 3 * stage_barriers)}; }
  __device__ Barriers<Config::query_stages> query_full(int warpgroup) const {
    return {at(queries_at + warpgroup * query_barriers)};
  }
  __device__ Barriers<Config::query_stages> query_empty(int warpgroup) const {
    return {at(queries_at + (warpgroups + warpgroup) * query_barriers)};
  }
  __device__ TileQueue tiles() const { return TileQueue::at(memory + queue_at); }

  /// The CTA's range of tiles, and the totals of the warps that compute it, in the memory of the queue.
  __device__ TileRange& tile_range() const { return *reinterpret_cast<TileRange*>(memory + tile_range_at); }
  __device__ WorkTotals* totals_of_warps() const {
    static_assert(threads / 32 * sizeof(WorkTotals) <= TileQueue::barriers_at,
                  "accumulators have the room of the tiles");
    return reinterpret_cast<WorkTotals*>(memory + queue_at);
  }

  /// All warps wait at this barrier between the passes.
  __device__ Barrier pass_barrier() const { return {at(pass_barrier_at)}; }
  __device__ volatile Pass& pass() const { return *reinterpret_cast<Pass*>(memory + pass_at); }

  /// Calls visit(barriers, arrivals of a phase) for all pipelines.
  template <class Visit>
  __device__ void for_all_barriers(Visit visit) const {
    visit(key_full(), 1);
    visit(key_empty(), warpgroups);
    visit(value_full(), 1);
    visit(value_empty(), warpgroups);
    for (int warpgroup = 0; warpgroup < warpgroups; ++warpgroup) {
      visit(query_full(warpgroup), 1);
      visit(query_empty(warpgroup), 1);
    }
    visit(tiles().full, 1);
    visit(tiles().empty, warpgroups + load_threads);
  }

  __device__ void initialise() const {
    for_all_barriers([](const auto& barriers, int arrivals) { barriers.initialise(arrivals); });
    fence_barrier_init();
  }
  __device__ void initialise_pass_barrier() const {
    pass_barrier().initialise(threads / 32);
    pass() = Pass::first;
  }

  /// Waits for all warps; `time` counts the calls. (A named barrier would suffice, but synccheck reports a barrier at
  /// two places of the code as divergent.)
  __device__ void wait_for_all_warps(unsigned time) const {
    __syncwarp();
    if (lane_index() == 0) pass_barrier().arrive();
    pass_barrier().wait(time & 1u);
  }

  /// Whether the CTA computes its tiles again with guards, because the first pass found a NaN. Initialises the barriers
  /// for the second pass. By all threads.
  __device__ bool begins_second_pass() const {
    if (pass() == Pass::second) return false;
    wait_for_all_warps(0);
    if (pass() == Pass::first) return false;
    wait_for_all_warps(1);
    if (threadIdx.x == 0) {
      for_all_barriers([](const auto& barriers, int) { barriers.invalidate(); });
      initialise();
      pass() = Pass::second;
    }
    wait_for_all_warps(2);
    return true;
  }
};

template <class Config>
constexpr int forward_threads = ForwardStorage<Config>::threads;
template <class Config>
constexpr int forward_shared_bytes = ForwardStorage<Config>::shared_bytes;

}  // namespace gdpa::hopper
