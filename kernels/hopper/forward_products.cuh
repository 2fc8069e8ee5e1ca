// Forward: the registers of a consumer warpgroup, its loads of Q, and its products S = Q K^T and O += P V.
#pragma once

#include "hopper/forward_storage.cuh"

namespace gdpa::hopper {

/// The registers of a consumer warpgroup, and its products.
template <class Config>
struct ForwardProducts {
  using Element = typename Config::Element;
  using Activation = typename Config::Activation;
  using Plan = ForwardPlan<Config>;
  static constexpr int steps = (Config::head_dim + 15) / 16;  ///< of Q K^T
  static constexpr int columns_v = output_columns(Config::head_dim_v);
  static constexpr int key_steps = Config::tile_keys / 16;  ///< of P V
  using ScoreProduct = WarpgroupProduct<Element, Config::tile_keys>;
  using OutputProduct = WarpgroupProduct<Element, columns_v>;
  // Numbered barriers: one for each warpgroup's own threads, one for each warpgroup's turn to issue.
  static constexpr int own_barrier = 1, turn_barrier = own_barrier + Plan::warpgroups;

  const ForwardArguments& arguments;
  const Plan& plan;
  const int warpgroup;

  unsigned query[steps][4];
  float scores[Config::tile_keys / 2];
  unsigned weights[key_steps][4];
  float output[columns_v / 2];

  __device__ __forceinline__ static bool leads() { return fresh_thread_index() == 0; }

  __device__ __forceinline__ void load_query(int number) {
    wait_for_turn(plan.query_filled(warpgroup), number);
    if (!Config::query_in_registers) return;
    const auto rows = plan.query(number, warpgroup);
    const unsigned thread = fresh_thread_index(), lane = thread % 32;
    const int row = static_cast<int>(thread / 32 * 16 + lane % 16);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      load_matrices(query[step], rows.chunk(row, step * 2 + static_cast<int>(lane / 16)));
    }
    if constexpr (Config::scales_query && Activation::scales_scores) scale_query();
  }

  /// What x of the function is of Q K^T.
  __device__ __forceinline__ float score_scale() const { return arguments.scale * Activation::score_factor; }

  __device__ __forceinline__ void scale_query() {
    const SplitFactor<Element> factor(score_scale());
#pragma unroll
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) query[step][i] = factor.times(query[step][i]);
    }
  }

  /// Gives the place of Q of a tile back; where it takes O, once O of the tile before has left it.
  __device__ __forceinline__ void release_query(int number) {
    if (!leads()) return;
    if (Config::query_in_registers) wait_for_stores_to_read();
    plan.query_free(warpgroup)[index_in<Config::query_stages>(number)].arrive();
  }

  __device__ __forceinline__ void issue_scores(int number, int stage) {
    const OperandDescriptor queries = plan.query(number, warpgroup).by_columns();
    const OperandDescriptor keys = plan.keys().stage(stage).by_columns();
    begin_products();
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const auto key_columns = keys.at(Plan::KeyTile::column_step(step));
      if constexpr (Config::query_in_registers) {
        ScoreProduct::template multiply_add<false>(scores, query[step], key_columns, step > 0);
      } else {
        ScoreProduct::template multiply_add<false>(scores, queries.at(Plan::QueryTile::column_step(step)), key_columns,
                                                   step > 0);
      }
    }
    commit_products();
  }

  __device__ __forceinline__ void issue_output(int stage, bool add) {
    const OperandDescriptor values = plan.values().stage(stage).by_rows();
    begin_products();
#pragma unroll
    for (int step = 0; step < key_steps; ++step) {
      OutputProduct::template multiply_add<true>(output, weights[step], values.at(Plan::ValueTile::row_step(step)),
                                                 add || step > 0);
    }
    commit_products();
  }
};

}  // namespace gdpa::hopper
