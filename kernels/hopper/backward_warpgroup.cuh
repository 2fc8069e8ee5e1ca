// Backward: a consumer warpgroup without its main loop: its registers, its products S, dP, dV, dK and dQ, and its
// epilogues. dQ of a step goes to the staging buffer in shared memory. dK and dV of a key tile go to the staging buffer
// too, or, with broadcast K/V, to global memory.
#pragma once

#include "hopper/backward_storage.cuh"
#include "hopper/rows.cuh"
#include "hopper/second_pass.cuh"

namespace gdpa::hopper {

/// The registers, the products and the epilogues.
template <class Config>
struct BackwardWarpgroup {
  using Element = typename Config::Element;
  using Activation = typename Config::Activation;
  using Shared = BackwardStorage<Config>;
  using Tile = KeyTile<typename Config::Mask>;
  static constexpr int part_queries = 64;  ///< queries of one product S or dP
  static constexpr int parts = Config::tile_queries / part_queries;
  static constexpr int part_steps = part_queries / 16;
  static constexpr int query_steps = parts * part_steps;  ///< of P^T dO and dS^T Q
  static constexpr int columns = output_columns(Config::head_dim);
  static constexpr int columns_v = output_columns(Config::head_dim_v);
  using PingPong = pipeline::PingPong<Shared::key_warpgroups, 1>;  ///< of consumers with keys

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

  __device__ __forceinline__ void issue_scores(int number, int step, int part) {
    issue_group([&] {
      multiply_columns<Element, Config::head_dim>(scores[part], shared.keys(number).from_row(warpgroup * Shared::rows),
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

  /// The function of the first query head of a key tile. If it has factors of the head, it has no other query head.
  __device__ __forceinline__ Activation function_of(const Tile& tile) const {
    return Activation::of(arguments.common.params, tile.first_head);
  }

  /// The factor of sums over the scores of a step; 1 if out_scale has multiplied the scores.
  __device__ __forceinline__ float out_scale_of(const Step& step) const {
    return Config::scales_entries ? 1.0f : tile_of(step).out_scale;
  }

  /// Writes dQ of a step to the staging buffer, for the store thread.
  __device__ __forceinline__ void stage_grad_query(const Step& step, int number) {
    const int tiles = step.number + static_cast<int>(step.is(Step::ends));
    shared.staging_pipeline(warpgroup).producer_acquire(Shared::times_staged(warpgroup, number, tiles));
    const auto swizzle = static_cast<int>(static_cast<unsigned>(step.flags) / Step::swizzle);
    if constexpr (Shared::adds_grad_output) {
      if (step.is(Step::loads_addend)) add_grad_output(step);
    }
    if (!step.is(Step::accumulated)) {
      if (Config::has_dq_semaphores && step.is(Step::loads_accumulator)) {
        const unsigned parity = step.is(Step::odd_phase) ? 1 : 0;
        shared.accumulator_pipeline(warpgroup).full(0).wait(parity);
        for_all_staged_accumulators(swizzle, [](unsigned at, float* accumulators) {
          const uint2 before = load_shared_pair(at);
          accumulators[0] += __uint_as_float(before.x);
          accumulators[1] += __uint_as_float(before.y);
        });
        const Barrier are_read = shared.accumulator_pipeline(warpgroup).empty(0);
        are_read.arrive();
        are_read.wait(parity);  // dQ overwrites them
      }
      stage_rounded<typename Shared::GradQueryTile>(grad_query, grad_query_factor(step), 0, Shared::grad_query_columns);
    } else if (Config::has_dq_semaphores || arguments.common.params.out_scale.kind == OutputScale::Kind::number) {
      stage_accumulators(swizzle, [](float sum) { return sum; });
    } else {
      const float factor = out_scale_of(step);
      stage_accumulators(swizzle, [factor](float sum) { return sum * factor; });
    }
    fence_and_arrive_by_warp(shared.staging_pipeline(warpgroup).full(0));
  }

  __device__ __forceinline__ float grad_query_factor(const Step& step) const {
    const auto& tile = tile_of(step);
    const float factor = arguments.scale * out_scale_of(step) * function_of(tile).derivative_factor();
    return Config::Epilogue::invertible(factor);
  }

  /// Adds dO, divided by the factor that multiplies dQ later. The store thread has loaded dO into the staging buffer.
  __device__ __forceinline__ void add_grad_output(const Step& step) {
    const unsigned parity = step.is(Step::odd_phase) ? 1 : 0;
    const float inverse = 1.0f / grad_query_factor(step);
    shared.accumulator_pipeline(warpgroup).full(0).wait(parity);
    const auto lane = static_cast<int>(thread_in_warpgroup() % 32);
    const int row = warp_in_warpgroup() * 16 + lane % 16;
    const typename Shared::GradQueryTile staging{shared.staging(warpgroup)};
#pragma unroll
    for (int j = 0; j < Shared::grad_query_columns / 16; ++j) {
      unsigned matrix[4];
      load_matrices(matrix, staging.chunk(row, j * 2 + lane / 16));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack<Element>(matrix[i]);
        grad_query[j * 8 + i * 2] += pair.x * inverse;
        grad_query[j * 8 + i * 2 + 1] += pair.y * inverse;
      }
    }
    const Barrier is_read = shared.accumulator_pipeline(warpgroup).empty(0);
    is_read.arrive();
    is_read.wait(parity);  // dQ overwrites it
  }

  template <class Scale>
  __device__ __forceinline__ void stage_accumulators(int first_swizzle, Scale scale) {
    for_all_staged_accumulators(first_swizzle, [scale](unsigned at, const float* accumulators) {
      store_shared(at, __float_as_uint(scale(accumulators[0])), __float_as_uint(scale(accumulators[1])));
    });
  }

  /// Calls visit(address in the staging buffer, two accumulators) for all accumulators of the thread. The groups of
  /// columns of a row are swizzled as grad_query_accumulators.cuh says: lanes with different rows use different banks.
  template <class Visit>
  __device__ __forceinline__ void for_all_staged_accumulators(int first_swizzle, Visit visit) {
    const unsigned lane = thread_in_warpgroup() % 32;
    const unsigned row = static_cast<unsigned>(warp_in_warpgroup()) * 16 + lane / 4;
    const unsigned to = shared.staging(warpgroup) + row * Shared::grad_query_row_bytes + lane % 4 * 8;
    const unsigned first = to ^ accumulator_swizzle(first_swizzle + row) * 32;
#pragma unroll
    for (unsigned group = 0; group < Shared::grad_query_columns / 8; ++group) {
      const unsigned at =
          (first ^ group % accumulator_swizzles * 32) + group / accumulator_swizzles * accumulator_swizzles * 32;
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        visit(at + half * 8 * Shared::grad_query_row_bytes, grad_query + group * 4 + half * 2);
      }
    }
  }

  /// Writes columns [first, end), rounded, as the first columns of a tile in the staging buffer.
  template <class Tile, int count>
  __device__ __forceinline__ void stage_rounded(const float (&accumulators)[count], float factor, int first, int end) {
    const unsigned thread = thread_in_warpgroup(), lane = thread % 32;
    const int row = static_cast<int>(thread / 32 * 16 + lane % 16);
    const Tile staging{shared.staging(warpgroup)};
#pragma unroll
    for (int j = first / 16; j < end / 16; ++j) {
      unsigned matrix[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        matrix[i] = Element::pack(accumulators[j * 8 + i * 2] * factor, accumulators[j * 8 + i * 2 + 1] * factor);
      }
      store_matrices(staging.chunk(row, (j - first / 16) * 2 + static_cast<int>(lane / 16)), matrix);
    }
  }

  /// Writes dK or dV to the staging buffer, in rounds. The buffer was filled `before` times before.
  template <int rounds, int count>
  __device__ __forceinline__ void stage_key_gradient(const float (&accumulators)[count], float factor, int before) {
#pragma unroll
    for (int round = 0; round < rounds; ++round) {
      const int first = round * Shared::columns_of_round;
      shared.staging_pipeline(warpgroup).producer_acquire(before + round);
      stage_rounded<typename Shared::RoundTile>(accumulators, factor, first,
                                                min(first + Shared::columns_of_round, count * 2));
      fence_and_arrive_by_warp(shared.staging_pipeline(warpgroup).full(0));
    }
  }

  /// Stores dK and dV of the key tile whose last step is `number`.
  __device__ __forceinline__ void store_grad_keys(const Step& step, int number) {
    const auto& tile = tile_of(step);
    const int row = warpgroup * Shared::rows;
    const int rows = tile.length_k - tile.first_key - row;
    const Activation function = function_of(tile);
    const float out_scale = out_scale_of(step);
    if constexpr (Config::computes_grad_key && Config::computes_grad_value) {
      flag_non_finite<Config>(arguments, rows, grad_key, grad_value);
    } else if constexpr (Config::computes_grad_key) {
      flag_non_finite<Config>(arguments, rows, grad_key);
    } else if constexpr (Config::computes_grad_value) {
      flag_non_finite<Config>(arguments, rows, grad_value);
    }
    if constexpr (Config::keys_shared) {
      using Gradients = KeyGradients<Config>;
      const Operand &of_key = Gradients::of_key(arguments), &of_value = Gradients::of_value(arguments);
      const auto first = [&](const Operand& operand, int64_t offset) {
        return static_cast<float*>(operand.data) + offset + row * operand.row_stride;
      };
      if constexpr (Config::computes_grad_key) {
        store_fp32_from_registers<Config::head_dim>(grad_key,
                                                    arguments.scale * out_scale * function.derivative_factor(),
                                                    first(of_key, tile.grad_key), of_key.row_stride, rows);
      }
      if constexpr (Config::computes_grad_value) {
        store_fp32_from_registers<Config::head_dim_v>(grad_value, function.value_factor() * out_scale,
                                                      first(of_value, tile.grad_value), of_value.row_stride, rows);
      }
    } else {
      const int before = Shared::times_staged(warpgroup, number, step.number);
      stage_key_gradient<Shared::key_rounds>(grad_key, arguments.scale * out_scale * function.derivative_factor(),
                                             before);
      stage_key_gradient<Shared::value_rounds>(grad_value, function.value_factor() * out_scale,
                                               before + Shared::key_rounds);
    }
  }
};

}  // namespace gdpa::hopper
