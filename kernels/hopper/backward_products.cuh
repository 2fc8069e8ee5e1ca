// Backward: the registers of a consumer warpgroup, and its products S, dP, dV, dK and dQ.
#pragma once

#include "hopper/backward_storage.cuh"

namespace gdpa::hopper {

/// The registers of a consumer warpgroup, and its products.
template <class Config>
struct BackwardProducts {
  using Element = typename Config::Element;
  using Activation = typename Config::Activation;
  using Plan = BackwardPlan<Config>;
  static constexpr int part_queries = 64;  ///< whose S and dP a product has
  static constexpr int parts = Config::tile_queries / part_queries;
  static constexpr int part_steps = part_queries / 16;
  static constexpr int steps = (Config::head_dim + 15) / 16;      ///< of K Q^T
  static constexpr int steps_v = (Config::head_dim_v + 15) / 16;  ///< of V dO^T
  static constexpr int query_steps = parts * part_steps;          ///< of P^T dO and dS^T Q
  static constexpr int key_steps = Config::tile_keys / 16;        ///< of dS K
  static constexpr int columns = output_columns(Config::head_dim);
  static constexpr int columns_v = output_columns(Config::head_dim_v);
  using ScoreProduct = WarpgroupProduct<Element, part_queries>;
  using GradKeyProduct = WarpgroupProduct<Element, columns>;
  using GradValueProduct = WarpgroupProduct<Element, columns_v>;
  using GradQueryProduct = WarpgroupProduct<Element, Plan::grad_query_columns>;
  static constexpr int turn_barrier = 1;  ///< numbered; one for each warpgroup's turn to issue
  static constexpr int turn_threads = Plan::warpgroups * warpgroup_threads;

  const BackwardArguments& arguments;
  const Plan& plan;
  const int warpgroup;

  float scores[parts][part_queries / 2];  ///< S^T, then f'
  float grad_weights[part_queries / 2];
  unsigned weights[query_steps][4];
  unsigned grad_scores[query_steps][4];
  float grad_query[Plan::grad_query_columns / 2];
  float grad_key[columns / 2];
  float grad_value[columns_v / 2];

  __device__ __forceinline__ static bool leads() { return fresh_thread_index() == 0; }

  __device__ __forceinline__ void issue_scores(int number, int step, int part) {
    const OperandDescriptor keys = plan.keys(number).from_row(warpgroup * Plan::rows).by_columns();
    const OperandDescriptor queries = plan.queries(step).from_row(part * part_queries).by_columns();
    begin_products();
#pragma unroll
    for (int k = 0; k < steps; ++k) {
      ScoreProduct::template multiply_add<false>(scores[part], keys.at(Plan::KeysTile::column_step(k)),
                                                 queries.at(Plan::QueryTile::column_step(k)), k > 0);
    }
    commit_products();
  }

  __device__ __forceinline__ void issue_grad_weights(int step, int part) {
    const OperandDescriptor values = plan.values().from_row(warpgroup * Plan::rows).by_columns();
    const OperandDescriptor grad_outputs = plan.grad_outputs(step).from_row(part * part_queries).by_columns();
    begin_products();
#pragma unroll
    for (int k = 0; k < steps_v; ++k) {
      ScoreProduct::template multiply_add<false>(grad_weights, values.at(Plan::ValuesTile::column_step(k)),
                                                 grad_outputs.at(Plan::GradOutputTile::column_step(k)), k > 0);
    }
    commit_products();
  }

  __device__ __forceinline__ void issue_grad_value(int step, bool add) {
    const OperandDescriptor grad_outputs = plan.grad_outputs(step).by_rows();
    begin_products();
#pragma unroll
    for (int k = 0; k < query_steps; ++k) {
      GradValueProduct::template multiply_add<true>(grad_value, weights[k],
                                                    grad_outputs.at(Plan::GradOutputTile::row_step(k)), add || k > 0);
    }
    commit_products();
  }

  __device__ __forceinline__ void issue_grad_key(int step, bool add) {
    const OperandDescriptor queries = plan.queries(step).by_rows();
    begin_products();
#pragma unroll
    for (int k = 0; k < query_steps; ++k) {
      GradKeyProduct::template multiply_add<true>(grad_key, grad_scores[k], queries.at(Plan::QueryTile::row_step(k)),
                                                  add || k > 0);
    }
    commit_products();
  }

  /// dS K for this warpgroup's columns, or queries.
  __device__ __forceinline__ void issue_grad_query(int number, int step) {
    constexpr unsigned half =
        Plan::grad_query_columns * Element::bytes / Plan::KeysTile::row_bytes * (Plan::KeysTile::block_bytes / 16) +
        Plan::grad_query_columns * Element::bytes % Plan::KeysTile::row_bytes / 16;
    const OperandDescriptor grads = plan.grad_scores(step).by_rows();
    const OperandDescriptor keys = plan.keys(number).by_rows();
    const auto share = static_cast<unsigned>(warpgroup);
    const unsigned query = Plan::splits_queries ? share * (Plan::ScoresTile::block_bytes / 16) : 0;
    const unsigned column = Plan::splits_queries ? 0 : share * half;
    begin_products();
#pragma unroll
    for (int k = 0; k < key_steps; ++k) {
      GradQueryProduct::template multiply_add<true, true>(grad_query, grads.at(Plan::ScoresTile::row_step(k) + query),
                                                          keys.at(Plan::KeysTile::row_step(k) + column), k > 0);
    }
    commit_products();
  }

  __device__ __forceinline__ const KeyTile& tile_of(const Step& step) const { return plan.tiles()[step.number]; }
};

}  // namespace gdpa::hopper
