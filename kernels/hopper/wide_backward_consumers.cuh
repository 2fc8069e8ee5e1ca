// Backward for head dims above 128: the main loops of the two consumer warpgroups.
#pragma once

#include "hopper/wide_backward_products.cuh"

namespace gdpa::hopper {

template <class Config>
struct ValueSide : WideSide<Config, Side::value> {
  using Base = WideSide<Config, Side::value>;
  using Base::Base, Base::arguments, Base::plan, Base::grad_query, Base::position, Base::before, Base::release;
  using typename Base::Element, typename Base::Plan, typename Base::GradQuery;
  using Activation = typename Config::Activation;

  float scores[32];
  unsigned weights[4][4];
  float grad_value[output_columns(Config::head_dim_v) / 2];

  /// P, rounded, and f' to the other side, which has read that of the step before when its dS is there.
  __device__ __forceinline__ void evaluate(const KeyTile& tile) {
    const float scale = arguments.scale * Activation::score_factor;
#pragma unroll
    for (int piece = 0; piece < 8; ++piece) {
      float value[4], derivative[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Activation::value_and_derivative(scores[piece * 4 + i] * scale, value[i], derivative[i]);
      }
      if constexpr (Plan::computes_grad_scores) {
        store_shared_chunk(plan.derivatives(piece), {__float_as_uint(derivative[0]), __float_as_uint(derivative[1]),
                                                     __float_as_uint(derivative[2]), __float_as_uint(derivative[3])});
      }
      if constexpr (Config::computes_grad_value) {
        weights[piece / 2][piece % 2 * 2] = Element::pack(value[0], value[1]);
        weights[piece / 2][piece % 2 * 2 + 1] = Element::pack(value[2], value[3]);
      }
    }
    if constexpr (Plan::computes_grad_scores) named_arrive(Plan::derivatives_written, Plan::computing_threads);
    if constexpr (Config::computes_grad_value) {
      if (!position.template is_full<Config>(tile)) position.kept(arguments, tile).mask(weights);
    }
  }

  /// From P of a step to that of the next, unless it is the last of a tile of keys.
  template <bool is_last>
  __device__ __forceinline__ void compute(const KeyTile& tile, int step, bool is_first) {
    if constexpr (!is_last) {
      wait_for_turn(plan.query_filled(), step + 1);
      issue_scores<Element, Config::head_dim>(scores, plan.keys(), plan.queries(step + 1));
    }
    if constexpr (Config::computes_grad_query) {
      if (!is_first) grad_query.template add<GradQuery::last_chunk>(arguments, tile, before);
    }
    wait_for_turn(plan.grad_output_filled(), step);
    if constexpr (Plan::computes_grad_scores) wait_for_turn(plan.grad_scores_written(), step);
    if constexpr (Base::has_two_chunks) grad_query.template issue<0>(plan, step);
    if constexpr (Config::computes_grad_value) {
      issue_gradient<Element>(grad_value, weights, plan.grad_outputs(step));
    }
    if constexpr (Base::has_two_chunks) {
      wait_for_products<Config::computes_grad_value ? 1 : 0>();
      grad_query.template add<0>(arguments, tile, position);
    }
    if constexpr (Config::computes_grad_query) {
      grad_query.template issue<GradQuery::last_chunk>(plan, step);
      wait_for_products<1>();
    } else {
      wait_for_products<0>();
    }
    release(plan.grad_output_free(), step);
    if constexpr (!is_last) {
      release(plan.query_free(), step + 1);
      this->advance(tile);
      evaluate(tile);
    }
    wait_for_products<0>();
    if constexpr (Config::computes_grad_query) release(plan.grad_scores_free(), step);
  }

  __device__ __forceinline__ void run(const KeyTile& tile, int number, int steps, int step) {
    wait_for_turn(plan.key_filled(), number);
    wait_for_turn(plan.query_filled(), step);
    issue_scores<Element, Config::head_dim>(scores, plan.keys(), plan.queries(step));
    wait_for_products<0>();
    release(plan.query_free(), step);
    evaluate(tile);
    if constexpr (Config::computes_grad_value) clear(grad_value);
    if constexpr (Config::computes_grad_query) grad_query.clear();
    const int last = step + steps - 1;
#pragma unroll 1
    for (bool is_first = true; step < last; ++step, is_first = false) compute<false>(tile, step, is_first);
    compute<true>(tile, last, steps == 1);
    release(plan.key_free(), number);
    if constexpr (Config::computes_grad_query) {
      grad_query.template add<GradQuery::last_chunk>(arguments, tile, position);
    }
    if constexpr (Config::computes_grad_value) {
      this->template store<Config::head_dim_v>(grad_value, Activation::value_factor, arguments.common.params.grad_value,
                                               tile.grad_value, tile);
    }
  }
};

template <class Config>
struct KeySide : WideSide<Config, Side::key> {
  using Base = WideSide<Config, Side::key>;
  using Base::Base, Base::arguments, Base::plan, Base::grad_query, Base::position, Base::before, Base::release;
  using typename Base::Element, typename Base::Plan, typename Base::GradQuery;

  float grad_weights[32];
  unsigned grad_scores[4][4];
  float grad_key[output_columns(Config::head_dim) / 2];

  __device__ __forceinline__ void issue_grad_weights(int step) {
    wait_for_turn(plan.grad_output_filled(), step);
    issue_scores<Element, Config::head_dim_v>(grad_weights, plan.values(), plan.grad_outputs(step));
  }

  /// dS = dP * f', rounded, as an operand, and for dQ to shared memory, for products of both sides.
  __device__ __forceinline__ void make_grad_scores(const KeyTile& tile, int step) {
    named_wait(Plan::derivatives_written, Plan::computing_threads);
#pragma unroll
    for (int piece = 0; piece < 8; ++piece) {
      const uint4 derivative = load_shared_chunk(plan.derivatives(piece));
      grad_weights[piece * 4] *= __uint_as_float(derivative.x);
      grad_weights[piece * 4 + 1] *= __uint_as_float(derivative.y);
      grad_weights[piece * 4 + 2] *= __uint_as_float(derivative.z);
      grad_weights[piece * 4 + 3] *= __uint_as_float(derivative.w);
    }
    if (!position.template is_full<Config>(tile)) position.kept(arguments, tile).mask(grad_weights);
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      grad_scores[i / 8][i % 8 / 2] = Element::pack(grad_weights[i], grad_weights[i + 1]);
    }
    if constexpr (Config::computes_grad_query) {
      const unsigned thread = fresh_thread_index(), lane = thread % 32;
      const int row = static_cast<int>(thread / 32 * 16 + lane % 16);
      const auto to = plan.grad_scores(step);
      wait_for_turn(plan.grad_scores_free(), step, 1);
#pragma unroll
      for (int k = 0; k < 4; ++k) store_matrices(to.chunk(row, k * 2 + static_cast<int>(lane / 16)), grad_scores[k]);
      publish_to_copies();
    }
    plan.grad_scores_written()[index_in<Plan::score_stages>(step)].arrive();
  }

  /// From dP of a step to that of the next, unless it is the last of a tile of keys.
  template <bool is_last>
  __device__ __forceinline__ void compute(const KeyTile& tile, int step, bool is_first) {
    make_grad_scores(tile, step);
    wait_for_turn(plan.query_filled(), step);
    if constexpr (Config::computes_grad_key) issue_gradient<Element>(grad_key, grad_scores, plan.queries(step));
    if constexpr (Config::computes_grad_query) {
      if (!is_first) grad_query.template add_row<GradQuery::last_chunk, 0>(arguments, tile, before);
    }
    wait_for_products<0>();
    release(plan.query_free(), step);  // early: the value side waits for what comes here
    if constexpr (Config::computes_grad_query) {
      if (!is_first) grad_query.template add_row<GradQuery::last_chunk, 1>(arguments, tile, before);
      wait_for_turn(plan.grad_scores_written(), step);
      grad_query.template issue<0>(plan, step);
    }
    if constexpr (!is_last) issue_grad_weights(step + 1);
    if constexpr (Base::has_two_chunks) {
      wait_for_products<is_last ? 0 : 1>();
      grad_query.template add<0>(arguments, tile, position);
      grad_query.template issue<1>(plan, step);
    }
    wait_for_products<0>();
    if constexpr (Config::computes_grad_query) release(plan.grad_scores_free(), step);
    if constexpr (!is_last) {
      release(plan.grad_output_free(), step + 1);
      this->advance(tile);
    }
  }

  __device__ __forceinline__ void run(const KeyTile& tile, int number, int steps, int step) {
    if constexpr (!Plan::computes_grad_scores) return;
    wait_for_turn(plan.value_filled(), number);
    issue_grad_weights(step);
    wait_for_products<0>();
    release(plan.grad_output_free(), step);
    wait_for_turn(plan.key_filled(), number);
    if constexpr (Config::computes_grad_key) clear(grad_key);
    if constexpr (Config::computes_grad_query) grad_query.clear();
    const int last = step + steps - 1;
#pragma unroll 1
    for (bool is_first = true; step < last; ++step, is_first = false) compute<false>(tile, step, is_first);
    release(plan.value_free(), number);
    compute<true>(tile, last, steps == 1);
    release(plan.key_free(), number);
    if constexpr (Config::computes_grad_query) {
      grad_query.template add<GradQuery::last_chunk>(arguments, tile, position);
    }
    if constexpr (Config::computes_grad_key) {
      this->template store<Config::head_dim>(grad_key, arguments.scale, arguments.common.params.grad_key, tile.grad_key,
                                             tile);
    }
  }
};

/// A side's way through the tiles of keys.
template <class OwnSide, class Config>
__device__ __forceinline__ void compute_side(const BackwardArguments& arguments, const WideBackwardPlan<Config>& plan) {
  int step = 0;
  for (int number = 0;; ++number) {
    const KeyTile& tile = plan.tiles().wait(number);
    const int steps = uniform(tile.steps);
    if (steps == 0) return;
    OwnSide(arguments, plan, tile).run(tile, number, steps, step);
    plan.tiles().release(number);
    step += steps;
  }
}

}  // namespace gdpa::hopper
