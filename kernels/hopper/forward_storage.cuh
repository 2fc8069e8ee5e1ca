// Forward: the roles of the threads, the layout of shared memory, and its barriers.
#pragma once

#include "hopper/schedule.cuh"
#include "hopper/tile.cuh"
#include "hopper/warpgroup.cuh"

namespace gdpa::hopper {

/// Bounds that only infinite scores need cost an instruction for each: a first pass over the CTA's tiles leaves them
/// out, and where O has NaN, which may come of that, there is a second one with them. Each is code of its own: a branch
/// at every key tile would cost as much as the bounds.
enum class Scores { taken_for_finite, bounded };
enum class Pass : int { first, first_that_found_nan, second };

/// Who is who, and what lies where in shared memory.
template <class Config>
struct ForwardPlan {
  static constexpr int rows = warpgroup_rows;
  static constexpr int warpgroups = Config::tile_queries / rows;  ///< that compute
  static constexpr int loaders = 3;                               ///< warps
  static constexpr int threads = (warpgroups + 1) * warpgroup_threads;
  static_assert(warpgroups == 1 || warpgroups == 2, "what turns are for");
  // 65,536 registers in all, in multiples of 8 a thread.
  static constexpr int computing_registers = warpgroups == 1 ? 240 : 224;
  static constexpr int other_registers = 56;

  // Q and O are a warpgroup's own.
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
  static constexpr int ring_at = queries_at + 2 * warpgroups * query_barriers;
  static constexpr int meeting_at = ring_at + TileRing::bytes;
  static constexpr int pass_at = meeting_at + Barrier::bytes;
  static constexpr int span_at = pass_at + static_cast<int>(sizeof(Pass));
  static constexpr int shared_bytes = span_at + static_cast<int>(sizeof(Span));
  static_assert(shared_bytes <= 227 * 1024, "more than a CTA can have");

  unsigned char* memory;

  __device__ unsigned at(int offset) const { return shared_address(memory) + static_cast<unsigned>(offset); }
  /// Q of a tile, by its number.
  __device__ QueryTile query(int number, int warpgroup) const {
    return {at((index_in<Config::query_stages>(number) * warpgroups + warpgroup) * query_bytes)};
  }
  /// O of a tile goes where Q of the next one was, which is in registers by then.
  __device__ OutputTile output(int number, int warpgroup) const { return {query(number + 1, warpgroup).base}; }
  __device__ KeyTile keys() const { return {at(keys_at)}; }
  __device__ ValueTile values() const { return {at(values_at)}; }

  __device__ Barriers<Config::stages> key_filled() const { return {at(barriers_at)}; }
  __device__ Barriers<Config::stages> key_free() const { return {at(barriers_at + stage_barriers)}; }
  __device__ Barriers<Config::stages> value_filled() const { return {at(barriers_at + 2 * stage_barriers)}; }
  __device__ Barriers<Config::stages> value_free() const { return {at(barriers_at + 3 * stage_barriers)}; }
  __device__ Barriers<Config::query_stages> query_filled(int warpgroup) const {
    return {at(queries_at + warpgroup * query_barriers)};
  }
  __device__ Barriers<Config::query_stages> query_free(int warpgroup) const {
    return {at(queries_at + (warpgroups + warpgroup) * query_barriers)};
  }
  __device__ TileRing tiles() const { return TileRing::at(memory + ring_at); }

  /// The CTA's share of the tiles, and what it takes to find it, where tiles are only dealt later.
  __device__ Span& span() const { return *reinterpret_cast<Span*>(memory + span_at); }
  __device__ Sum* sums_of_warps() const {
    static_assert(threads / 32 * sizeof(Sum) <= TileRing::barriers_at, "sums have the room of the tiles");
    return reinterpret_cast<Sum*>(memory + ring_at);
  }

  /// Of all warps, between the passes.
  __device__ Barrier meeting() const { return {at(meeting_at)}; }
  __device__ volatile Pass& pass() const { return *reinterpret_cast<Pass*>(memory + pass_at); }

  /// Calls visit(barriers, arrivals of a phase) for all of them.
  template <class Visit>
  __device__ void for_all_barriers(Visit visit) const {
    visit(key_filled(), 1);
    visit(key_free(), warpgroups);
    visit(value_filled(), 1);
    visit(value_free(), warpgroups);
    for (int warpgroup = 0; warpgroup < warpgroups; ++warpgroup) {
      visit(query_filled(warpgroup), 1);
      visit(query_free(warpgroup), 1);
    }
    visit(tiles().filled, 1);
    visit(tiles().free, warpgroups + loaders);
  }

  __device__ void initialise() const {
    for_all_barriers([](const auto& barriers, int arrivals) { barriers.initialise(arrivals); });
    publish_barriers();
  }
  __device__ void initialise_meeting() const {
    meeting().initialise(threads / 32);
    pass() = Pass::first;
  }

  /// Waits for all warps, for the time-th time. (One numbered barrier at two places of the code would do, but synccheck
  /// takes it for a divergence.)
  __device__ void meet(unsigned time) const {
    __syncwarp();
    if (lane_index() == 0) meeting().arrive();
    meeting().wait(time & 1u);
  }

  /// Whether the first pass over the CTA's tiles found NaN, so that scores are bounded in a second one, for which the
  /// barriers are as at the beginning. By all threads.
  __device__ bool begins_again() const {
    if (pass() == Pass::second) return false;
    meet(0);
    if (pass() == Pass::first) return false;
    meet(1);
    if (threadIdx.x == 0) {
      for_all_barriers([](const auto& barriers, int) { barriers.invalidate(); });
      initialise();
      pass() = Pass::second;
    }
    meet(2);
    return true;
  }
};

template <class Config>
constexpr int forward_threads = ForwardPlan<Config>::threads;
template <class Config>
constexpr int forward_shared_bytes = ForwardPlan<Config>::shared_bytes;

}  // namespace gdpa::hopper
