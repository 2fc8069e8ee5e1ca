// Forward: the layout of shared memory, and the two passes over the tiles of a CTA.
#pragma once

#include "common/fragment_inputs.cuh"
#include "hopper/query_major_storage.cuh"

namespace gdpa::hopper {

/// Guards that only infinite scores need cost an instruction for each score. The first pass over the CTA's tiles leaves
/// them out. If O has a NaN, which infinite scores can cause, a second pass evaluates f with guards. Each pass has its
/// own code, because a branch in every key tile would cost as much as the guards.
enum class Scores { assumed_finite, bounded };
enum class Pass : int { first, first_that_found_nan, second };

/// The stage of Q of a warpgroup, which O may leave through.
template <class Config>
constexpr int forward_query_bytes() {
  constexpr int query = SwizzledTile<warpgroup_rows, Config::head_dim>::bytes,
                output = SwizzledTile<warpgroup_rows, Config::head_dim_v>::bytes;
  return Config::query_in_registers && output > query ? output : query;
}

template <class Config>
struct ForwardStorage : QueryMajorStorage<Config, forward_query_bytes<Config>()> {
  using Base = QueryMajorStorage<Config, forward_query_bytes<Config>()>;
  using Base::at, Base::for_all_barriers, Base::initialise, Base::memory, Base::query, Base::threads;
  using OutputTile = SwizzledTile<Base::rows, Config::head_dim_v>;

  static constexpr int pass_barrier_at = (Base::end + Barrier::bytes - 1) / Barrier::bytes * Barrier::bytes;
  static constexpr int pass_at = pass_barrier_at + Barrier::bytes;
  using Inputs = StagedInputs<typename Config::Bias, Config::tile_keys>;
  static constexpr int inputs_at = (pass_at + static_cast<int>(sizeof(Pass)) + 15) / 16 * 16;
  static constexpr int warps = Base::warpgroups * warpgroup_threads / 32;
  static constexpr int shared_bytes = inputs_at + warps * Inputs::bytes;
  static_assert(shared_bytes <= 227 * 1024, "more than a CTA can have");

  /// O of a tile uses the memory of Q of the next tile, which is in registers then.
  __device__ OutputTile output(int number, int warpgroup) const { return {query(number + 1, warpgroup).base}; }

  /// The inputs of the scores of a consumer warp.
  __device__ Inputs inputs(int warp) const { return {memory + inputs_at + warp * Inputs::bytes}; }

  /// All warps wait at this barrier between the passes.
  __device__ Barrier pass_barrier() const { return {at(pass_barrier_at)}; }
  __device__ volatile Pass& pass() const { return *reinterpret_cast<Pass*>(memory + pass_at); }

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
