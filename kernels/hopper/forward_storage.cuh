// Forward: the layout of the shared memory of a CTA.
#pragma once

#include "common/fragment_inputs.cuh"
#include "hopper/query_major.cuh"

namespace gdpa::hopper {

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
  using Base::memory, Base::query;
  using OutputTile = SwizzledTile<Base::rows, Config::head_dim_v>;

  using WarpInputs =
      StagedInputs<typename Config::Inputs, Config::tile_keys, Config::bias_tile, Config::stages_lookups>;
  static constexpr int inputs_at =
      (Base::end + WarpInputs::alignment - 1) / WarpInputs::alignment * WarpInputs::alignment;
  static constexpr int warps = Base::warpgroups * warpgroup_threads / 32;
  static constexpr int shared_bytes = inputs_at + warps * WarpInputs::bytes;
  static_assert(shared_bytes <= 227 * 1024, "more than a CTA can have");

  /// O of a tile uses the memory of Q of the next tile, which is in registers then.
  __device__ OutputTile output(int number, int warpgroup) const { return {query(number + 1, warpgroup).base}; }

  /// The inputs of the scores of a consumer warp.
  __device__ WarpInputs inputs(int warp) const { return {memory + inputs_at + warp * WarpInputs::bytes}; }
};

template <class Config>
using forward_cta = ForwardStorage<Config>;

}  // namespace gdpa::hopper
