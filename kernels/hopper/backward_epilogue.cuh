// Backward: what a consumer warpgroup does with its accumulators: dQ of a step, and dK and dV of a tile of keys, go to
// the staging buffers in shared memory, or to global memory.
#pragma once

#include "hopper/backward_products.cuh"
#include "hopper/key_gradients.cuh"
#include "hopper/where_needed.cuh"

namespace gdpa::hopper {

/// Stages and stores the gradients.
template <class Config>
struct BackwardEpilogue : BackwardProducts<Config> {
  using Base = BackwardProducts<Config>;
  using Base::arguments, Base::grad_key, Base::grad_query, Base::grad_value, Base::plan, Base::tile_of, Base::warpgroup;
  using typename Base::Activation, typename Base::Element, typename Base::Plan;

  /// dQ of a step to the staging place, for the sender.
  __device__ __forceinline__ void stage_grad_query(const Step& step, int number) {
    const int tiles = step.number + static_cast<int>(step.is(Step::ends));
    wait_for_turn(plan.staging_free(warpgroup), Plan::times_staged(number, tiles), 1);
    const int turn = step.flags / Step::turn;
    if (!step.is(Step::summed)) {
      if (Config::sums_begun && step.is(Step::taken)) {
        const unsigned parity = step.is(Step::odd) ? 1 : 0;
        plan.sums_have_come(warpgroup).wait(parity);
        for_all_staged_sums(turn, [](unsigned at, float* sums) {
          const uint2 before = load_shared_pair(at);
          sums[0] += __uint_as_float(before.x);
          sums[1] += __uint_as_float(before.y);
        });
        const Barrier are_read = plan.sums_are_read(warpgroup);
        are_read.arrive();
        are_read.wait(parity);  // dQ takes their place
      }
      stage_rounded<typename Plan::GradQueryTile>(grad_query, arguments.scale * tile_of(step).out_scale, 0,
                                                  Plan::grad_query_columns);
    } else if (Config::sums_begun || arguments.common.params.out_scale.kind == OutputScale::Kind::number) {
      stage_sums(turn, [](float sum) { return sum; });
    } else {
      const float factor = tile_of(step).out_scale;
      stage_sums(turn, [factor](float sum) { return sum * factor; });
    }
    publish_by_warp(plan.staged(warpgroup)[0]);
  }

  template <class Scale>
  __device__ __forceinline__ void stage_sums(int first_turn, Scale scale) {
    for_all_staged_sums(first_turn, [scale](unsigned at, const float* sums) {
      store_shared(at, __float_as_uint(scale(sums[0])), __float_as_uint(scale(sums[1])));
    });
  }

  /// Calls visit(address in the staging place, two sums) for all that the thread has. As grad_query_sums.cuh says where
  /// a row's groups of columns lie: lanes that have different rows meet different banks.
  template <class Visit>
  __device__ __forceinline__ void for_all_staged_sums(int first_turn, Visit visit) {
    const unsigned thread = fresh_thread_index(), lane = thread % 32;
    const unsigned row = thread / 32 * 16 + lane / 4;
    const unsigned to = plan.staging(warpgroup) + row * Plan::grad_query_row_bytes + lane % 4 * 8;
    const unsigned turn = turn_of_sums(first_turn + row);
#pragma unroll
    for (unsigned group = 0; group < Plan::grad_query_columns / 8; ++group) {
      const unsigned at = to + group / sums_turns * sums_turns * 32 + (group % sums_turns ^ turn) * 32;
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        visit(at + half * 8 * Plan::grad_query_row_bytes, grad_query + group * 4 + half * 2);
      }
    }
  }

  /// Columns [first, end) of sums, rounded, as the first of a tile in the staging place.
  template <class Tile, int count>
  __device__ __forceinline__ void stage_rounded(const float (&sums)[count], float factor, int first, int end) {
    const unsigned thread = fresh_thread_index(), lane = thread % 32;
    const int row = static_cast<int>(thread / 32 * 16 + lane % 16);
    const Tile staging{plan.staging(warpgroup)};
#pragma unroll
    for (int j = first / 16; j < end / 16; ++j) {
      unsigned matrix[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        matrix[i] = Element::pack(sums[j * 8 + i * 2] * factor, sums[j * 8 + i * 2 + 1] * factor);
      }
      store_matrices(staging.chunk(row, (j - first / 16) * 2 + static_cast<int>(lane / 16)), matrix);
    }
  }

  /// dK or dV to the staging place, in rounds; `before` times it was filled before.
  template <int rounds, int count>
  __device__ __forceinline__ void stage_key_gradient(const float (&sums)[count], float factor, int before) {
#pragma unroll
    for (int round = 0; round < rounds; ++round) {
      const int first = round * Plan::columns_of_round;
      wait_for_turn(plan.staging_free(warpgroup), before + round, 1);
      stage_rounded<typename Plan::RoundTile>(sums, factor, first, min(first + Plan::columns_of_round, count * 2));
      publish_by_warp(plan.staged(warpgroup)[0]);
    }
  }

  /// dK and dV of the tile of keys that step `number` ends.
  __device__ __forceinline__ void store_grad_keys(const Step& step, int number) {
    const KeyTile& tile = tile_of(step);
    const int row = warpgroup * Plan::rows;
    const int rows = tile.length_k - tile.first_key - row;
    const float out_scale = tile.out_scale;
    if constexpr (Config::computes_grad_key && Config::computes_grad_value) {
      look_for_infinity<Config>(arguments, rows, grad_key, grad_value);
    } else if constexpr (Config::computes_grad_key) {
      look_for_infinity<Config>(arguments, rows, grad_key);
    } else if constexpr (Config::computes_grad_value) {
      look_for_infinity<Config>(arguments, rows, grad_value);
    }
    if constexpr (Config::keys_shared) {
      using Gradients = KeyGradients<Config>;
      const Operand &of_key = Gradients::of_key(arguments), &of_value = Gradients::of_value(arguments);
      const auto first = [&](const Operand& operand, int64_t offset) {
        return static_cast<typename Gradients::Element::Storage*>(operand.data) + offset + row * operand.row_stride;
      };
      if constexpr (Config::computes_grad_key) {
        Gradients::template store<Config::head_dim>(grad_key, arguments.scale * out_scale, first(of_key, tile.grad_key),
                                                    of_key.row_stride, rows);
      }
      if constexpr (Config::computes_grad_value) {
        Gradients::template store<Config::head_dim_v>(grad_value, Activation::value_factor * out_scale,
                                                      first(of_value, tile.grad_value), of_value.row_stride, rows);
      }
    } else {
      const int before = Plan::times_staged(number, step.number);
      stage_key_gradient<Plan::key_rounds>(grad_key, arguments.scale * out_scale, before);
      stage_key_gradient<Plan::value_rounds>(grad_value, Activation::value_factor * out_scale,
                                             before + Plan::key_rounds);
    }
  }
};

}  // namespace gdpa::hopper
