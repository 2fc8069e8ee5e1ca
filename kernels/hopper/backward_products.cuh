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
  static constexpr int query_steps = parts * part_steps;          ///< of P^T dO and dS^T Q
  static constexpr int columns = output_columns(Config::head_dim);
  static constexpr int columns_v = output_columns(Config::head_dim_v);
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
    issue_group([&] {
      multiply_columns<Element, Config::head_dim>(scores[part],
                                                  shared.keys(number).from_row(warpgroup * Shared::rows),
                                                  shared.queries(step).from_row(part * part_queries));
    });
  }
  __device__ __forceinline__ void issue_dp(int step, int part) {
    issue_group([&] {
      multiply_columns<Element, Config::head_dim_v>(dp, shared.values().from_row(warpgroup * Shared::rows),
                                                    shared.grad_outputs(step).from_row(part * part_queries));
    });
  }
  __device__ __forceinline__ void issue_grad_value(int step, bool add) {
    issue_group([&] { multiply_rows<Element>(grad_value, p, shared.grad_outputs(step), add); });
  }
  __device__ __forceinline__ void issue_grad_key(int step, bool add) {
    issue_group([&] { multiply_rows<Element>(grad_key, ds, shared.queries(step), add); });
  }

  /// dQ = dS K, for the columns or the queries of this consumer.
  __device__ __forceinline__ void issue_grad_query(int number, int step) {
    constexpr unsigned half = Shared::grad_query_columns * Element::bytes / Shared::KeysTile::row_bytes *
                                  (Shared::KeysTile::block_bytes / 16) +
                              Shared::grad_query_columns * Element::bytes % Shared::KeysTile::row_bytes / 16;
    const auto half_index = static_cast<unsigned>(warpgroup);
    const unsigned query = Shared::splits_queries ? half_index * (Shared::ScoresTile::block_bytes / 16) : 0;
    const unsigned column = Shared::splits_queries ? 0 : half_index * half;
    issue_group([&] { multiply_rows<Element>(grad_query, shared.ds(step), query, shared.keys(number), column); });
  }

  __device__ __forceinline__ const Tile& tile_of(const Step& step) const {
    return shared.tiles()[Shared::item_of(step)];
  }
};

}  // namespace gdpa::hopper
