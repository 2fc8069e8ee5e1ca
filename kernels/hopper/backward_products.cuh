// Backward: the registers of a consumer warpgroup, and its products S, dP, dV, dK and dQ.
#pragma once

#include "hopper/backward_storage.cuh"

namespace gdpa::hopper {

/// The registers of a consumer warpgroup, and its products.
template <class Config>
struct BackwardProducts {
  using Element = typename Config::Element;
  using Activation = typename Config::Activation;
  using Shared = BackwardStorage<Config>;
  using Tile = KeyTile<typename Config::Mask>;
  static constexpr int part_queries = 64;  ///< queries of one product S or dP
  static constexpr int parts = Config::tile_queries / part_queries;
  static constexpr int part_steps = part_queries / 16;
  static constexpr int steps = (Config::head_dim + 15) / 16;      ///< of K Q^T
  static constexpr int steps_v = (Config::head_dim_v + 15) / 16;  ///< of V dO^T
  static constexpr int query_steps = parts * part_steps;          ///< of P^T dO and dS^T Q
  static constexpr int key_steps = Config::tile_keys / 16;        ///< of dS K
  static constexpr int columns = output_columns(Config::head_dim);
  static constexpr int columns_v = output_columns(Config::head_dim_v);
  using ScoreProduct = WarpgroupMma<Element, part_queries>;
  using GradKeyProduct = WarpgroupMma<Element, columns>;
  using GradValueProduct = WarpgroupMma<Element, columns_v>;
  using GradQueryProduct = WarpgroupMma<Element, Shared::grad_query_columns>;
  static constexpr int ping_pong_barrier = 1;  ///< the first of two named barriers, one for each consumer

  const BackwardArguments& arguments;
  const Shared& shared;
  const int warpgroup;

  float scores[parts][part_queries / 2];  ///< S^T, then f'
  float dp[part_queries / 2];
  unsigned p[query_steps][4];
  unsigned ds[query_steps][4];
  float grad_query[Shared::grad_query_columns / 2];
  float grad_key[columns / 2];
  float grad_value[columns_v / 2];

  __device__ __forceinline__ static bool leads() { return thread_in_warpgroup() == 0; }

  // Ping-pong order: two consumers with keys issue their products in alternation.
  __device__ __forceinline__ void ping_pong_wait() const {
    if (Shared::key_warpgroups > 1)
      named_barrier_sync(ping_pong_barrier + warpgroup, Shared::key_warpgroups * warpgroup_threads);
  }
  __device__ __forceinline__ void ping_pong_arrive() const {
    if (Shared::key_warpgroups > 1)
      named_barrier_arrive(ping_pong_barrier + (warpgroup ^ 1), Shared::key_warpgroups * warpgroup_threads);
  }

  __device__ __forceinline__ void issue_scores(int number, int step, int part) {
    const OperandDescriptor keys = shared.keys(number).from_row(warpgroup * Shared::rows).by_columns();
    const OperandDescriptor queries = shared.queries(step).from_row(part * part_queries).by_columns();
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < steps; ++k) {
      ScoreProduct::template multiply_add<false>(scores[part], keys.at(Shared::KeysTile::column_step(k)),
                                                 queries.at(Shared::QueryTile::column_step(k)), k > 0);
    }
    warpgroup_commit();
  }

  __device__ __forceinline__ void issue_dp(int step, int part) {
    const OperandDescriptor values = shared.values().from_row(warpgroup * Shared::rows).by_columns();
    const OperandDescriptor grad_outputs = shared.grad_outputs(step).from_row(part * part_queries).by_columns();
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < steps_v; ++k) {
      ScoreProduct::template multiply_add<false>(dp, values.at(Shared::ValuesTile::column_step(k)),
                                                 grad_outputs.at(Shared::GradOutputTile::column_step(k)), k > 0);
    }
    warpgroup_commit();
  }

  __device__ __forceinline__ void issue_grad_value(int step, bool add) {
    const OperandDescriptor grad_outputs = shared.grad_outputs(step).by_rows();
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < query_steps; ++k) {
      GradValueProduct::template multiply_add<true>(grad_value, p[k],
                                                    grad_outputs.at(Shared::GradOutputTile::row_step(k)), add || k > 0);
    }
    warpgroup_commit();
  }

  __device__ __forceinline__ void issue_grad_key(int step, bool add) {
    const OperandDescriptor queries = shared.queries(step).by_rows();
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < query_steps; ++k) {
      GradKeyProduct::template multiply_add<true>(grad_key, ds[k], queries.at(Shared::QueryTile::row_step(k)),
                                                  add || k > 0);
    }
    warpgroup_commit();
  }

  /// dQ = dS K, for the columns or the queries of this consumer.
  __device__ __forceinline__ void issue_grad_query(int number, int step) {
    constexpr unsigned half = Shared::grad_query_columns * Element::bytes / Shared::KeysTile::row_bytes *
                                  (Shared::KeysTile::block_bytes / 16) +
                              Shared::grad_query_columns * Element::bytes % Shared::KeysTile::row_bytes / 16;
    const OperandDescriptor grads = shared.ds(step).by_rows();
    const OperandDescriptor keys = shared.keys(number).by_rows();
    const auto half_index = static_cast<unsigned>(warpgroup);
    const unsigned query = Shared::splits_queries ? half_index * (Shared::ScoresTile::block_bytes / 16) : 0;
    const unsigned column = Shared::splits_queries ? 0 : half_index * half;
    warpgroup_arrive();
#pragma unroll
    for (int k = 0; k < key_steps; ++k) {
      GradQueryProduct::template multiply_add<true, true>(grad_query, grads.at(Shared::ScoresTile::row_step(k) + query),
                                                          keys.at(Shared::KeysTile::row_step(k) + column), k > 0);
    }
    warpgroup_commit();
  }

  __device__ __forceinline__ const Tile& tile_of(const Step& step) const {
    return shared.tiles()[Shared::item_of(step)];
  }
};

}  // namespace gdpa::hopper
