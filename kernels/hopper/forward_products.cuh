// Forward: the registers of a consumer warpgroup, its loads of Q, and its products S = Q K^T and O += P V.
#pragma once

#include "hopper/forward_storage.cuh"

namespace gdpa::hopper {

/// The registers of a consumer warpgroup, and its products.
template <class Config>
struct ForwardProducts {
  using Element = typename Config::Element;
  using Activation = typename Config::Activation;
  using Shared = ForwardStorage<Config>;
  using Tile = QueryTile<typename Config::Mask>;
  static constexpr int steps = (Config::head_dim + 15) / 16;  ///< of Q K^T
  static constexpr int columns_v = output_columns(Config::head_dim_v);
  static constexpr int key_steps = Config::tile_keys / 16;  ///< of P V
  using ScoreProduct = WarpgroupMma<Element, Config::tile_keys>;
  using OutputProduct = WarpgroupMma<Element, columns_v>;
  // Named barriers: one for the threads of each warpgroup, and one for the ping-pong order of each warpgroup.
  static constexpr int own_barrier = 1, ping_pong_barrier = own_barrier + Shared::warpgroups;

  const ForwardArguments& arguments;
  const Shared& shared;
  const int warpgroup;

  unsigned query[steps][4];
  float scores[Config::tile_keys / 2];
  unsigned p[key_steps][4];
  float output[columns_v / 2];

  __device__ __forceinline__ static bool leads() { return thread_in_warpgroup() == 0; }

  __device__ __forceinline__ void load_query(int number) {
    consumer_wait(shared.query_full(warpgroup), number);
    if (!Config::query_in_registers) return;
    const auto rows = shared.query(number, warpgroup);
    const unsigned thread = thread_in_warpgroup(), lane = thread % 32;
    const int row = static_cast<int>(thread / 32 * 16 + lane % 16);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      load_matrices(query[step], rows.chunk(row, step * 2 + static_cast<int>(lane / 16)));
    }
    if constexpr (Activation::multiplies_query) scale_query(shared.tiles()[number].head);
  }

  /// Multiplies Q by the factor from Q K^T to the argument of the function, or by 1 if the function multiplies each
  /// score.
  __device__ __forceinline__ void scale_query(int head) {
    const SplitFactor<Element> factor(Activation::query_factor_of(arguments.common.params, head, arguments.scale));
#pragma unroll
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) query[step][i] = factor.times(query[step][i]);
    }
  }

  /// Releases the stage of Q of a tile. If O uses the stage, O of the previous tile must have left it.
  __device__ __forceinline__ void release_query(int number) {
    if (!leads()) return;
    if (Config::query_in_registers) tma_store_wait_read();
    shared.query_empty(warpgroup)[stage_of<Config::query_stages>(number)].arrive();
  }

  __device__ __forceinline__ void issue_scores(int number, int stage) {
    const OperandDescriptor queries = shared.query(number, warpgroup).by_columns();
    const OperandDescriptor keys = shared.keys().stage(stage).by_columns();
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const auto key_columns = keys.at(Shared::KeyTile::column_step(step));
      if constexpr (Config::query_in_registers) {
        ScoreProduct::template multiply_add<false>(scores, query[step], key_columns, step > 0);
      } else {
        ScoreProduct::template multiply_add<false>(scores, queries.at(Shared::QueryTile::column_step(step)),
                                                   key_columns, step > 0);
      }
    }
    warpgroup_commit();
  }

  /// O += P V. With `add` false, the accumulators begin here.
  __device__ __forceinline__ void issue_output(int stage, bool add) {
    const OperandDescriptor values = shared.values().stage(stage).by_rows();
    warpgroup_arrive();
#pragma unroll
    for (int step = 0; step < key_steps; ++step) {
      OutputProduct::template multiply_add<true>(output, p[step], values.at(Shared::ValueTile::row_step(step)),
                                                 add || step > 0);
    }
    warpgroup_commit();
  }
};

}  // namespace gdpa::hopper
