// Backward: the main loop of a consumer warpgroup.
#pragma once

#include "hopper/backward_epilogue.cuh"
#include "hopper/kept_queries.cuh"

namespace gdpa::hopper {

/// One consumer warpgroup.
template <class Config>
struct BackwardConsumer : BackwardEpilogue<Config> {
  using Base = BackwardEpilogue<Config>;
  using Base::arguments, Base::grad_key, Base::grad_query, Base::grad_scores, Base::grad_value, Base::grad_weights,
      Base::issue_grad_key, Base::issue_grad_query, Base::issue_grad_value, Base::issue_grad_weights,
      Base::issue_scores, Base::leads, Base::part_queries, Base::part_steps, Base::parts, Base::plan, Base::scores,
      Base::stage_grad_query, Base::store_grad_keys, Base::tile_of, Base::turn_barrier, Base::turn_threads,
      Base::warpgroup, Base::weights;
  using typename Base::Activation, typename Base::Element, typename Base::Plan;

  /// The step, once Q is there too. One lane reads it for its warp, and tells when it has been read: racecheck does not
  /// see that one lane arrives for others.
  __device__ __forceinline__ Step wait_for_step(int number) const {
    wait_for_turn(plan.query_filled(), number);
    Step step{};
    if (lane_index() == 0) step = plan.step(number);
    return {uniform(step.flags), uniform(step.number), 0};
  }

  /// P, rounded, and f' in the registers of the scores.
  template <int part>
  __device__ __forceinline__ void apply_function() {
    const float scale = arguments.scale * Activation::score_factor;
    float(&of_part)[part_queries / 2] = scores[part];
#pragma unroll
    for (int i = 0; i < part_queries / 2; i += 2) {
      float value[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float derivative;
        Activation::value_and_derivative(of_part[i + j] * scale, value[j], derivative);
        if constexpr (Plan::computes_grad_scores) of_part[i + j] = derivative;
      }
      if constexpr (Config::computes_grad_value) {
        weights[part * part_steps + i / 8][i % 8 / 2] = Element::pack(value[0], value[1]);
      }
    }
  }

  /// Where scores do not count P is 0; and f', unless dS of each part is masked itself: dS is 0 then, but for gradients
  /// that are not finite.
  template <int part>
  __device__ __forceinline__ void mask(const KeptQueries& kept) {
    if constexpr (Config::computes_grad_value) kept.mask(weights + part * part_steps);
    if constexpr (Plan::computes_grad_scores && parts == 1) kept.mask(scores[part]);
  }

  /// dS = dP * f', in the registers of dP.
  template <int part>
  __device__ __forceinline__ void apply_derivative() {
#pragma unroll
    for (int i = 0; i < part_queries / 2; ++i) grad_weights[i] *= scores[part][i];
  }

  /// dS, rounded, as an operand, and for dQ to shared memory, where the other warpgroup sees it once it is published.
  template <int part>
  __device__ __forceinline__ void write_grad_scores(int step) {
#pragma unroll
    for (int i = 0; i < part_queries / 2; i += 2) {
      grad_scores[part * part_steps + i / 8][i % 8 / 2] = Element::pack(grad_weights[i], grad_weights[i + 1]);
    }
    if constexpr (!Config::computes_grad_query) return;
    const unsigned thread = fresh_thread_index(), lane = thread % 32;
    const int row = warpgroup * Plan::rows + static_cast<int>(thread / 32 * 16 + lane % 16);
    const auto tile = plan.grad_scores(step);
    if (part == 0) wait_for_turn(plan.grad_scores_free(), step, 1);
#pragma unroll
    for (int k = part * part_steps; k < (part + 1) * part_steps; ++k) {
      store_matrices(tile.chunk(row, k * 2 + static_cast<int>(lane / 16)), grad_scores[k]);
    }
  }
  __device__ __forceinline__ void publish_grad_scores(int step) const {
    if constexpr (!Config::computes_grad_query) return;
    publish_by_warp(plan.grad_scores_written()[index_in<Plan::score_stages>(step)]);
  }

  /// Behind the last product with K of a tile, and the last look at what the ring says of it.
  __device__ __forceinline__ void release_keys(int number) {
    if (leads()) plan.key_free()[index_in<Plan::key_stages>(number)].arrive();
    plan.tiles().release(number);
  }

  /// Behind the warp's last look at what it says, and the last product with Q.
  __device__ __forceinline__ void release_step(int number) const {
    if (lane_index() == 0) plan.query_free()[index_in<Config::stages>(number)].arrive();
  }

  __device__ __forceinline__ KeptQueries kept_queries(const Step& step, int number, int part) const {
    int query_tile = 0;
    if (lane_index() == 0) query_tile = plan.step(number).query_tile;
    const KeyTile& tile = tile_of(step);
    return {arguments.common.params.mask, tile, tile.first_key + warpgroup * Plan::rows,
            tile.first_query + uniform(query_tile) * Config::tile_queries + part * part_queries};
  }

  /// P and f' of a step whose S and dP are under way, of its first part; of more than one, dS too. S of a part is
  /// multiplied late, behind the function of the one before: else the compiler begins with its own, for which there are
  /// no registers.
  template <int part = 0>
  __device__ __forceinline__ void weigh(const Step& step, int number) {
    constexpr int products_after_scores = Plan::computes_grad_scores ? 1 : 0;  // dP
    if constexpr (part == 0) wait_for_products<products_after_scores>();
    apply_function<part>();
    // A branch: the border of a block keeps the function above the wait for dP.
    if (!step.is(Step::full)) mask<part>(kept_queries(step, number, part));
    if constexpr (part + 1 < parts) {
      issue_scores(step.number, number, part + 1);
      if constexpr (Plan::computes_grad_scores) {
        wait_for_products<1>();
        end_part<part>(step, number);
        issue_grad_weights(number, part + 1);
      }
      wait_for_products<products_after_scores>();
      weigh<part + 1>(step, number);
    } else if constexpr (Plan::computes_grad_scores) {
      wait_for_products<0>();
      if (step.is(Step::ends) && leads()) plan.value_free()[0].arrive();
      if constexpr (parts > 1) end_part<part>(step, number);
    }
  }

  /// dS of a part, 0 where scores do not count.
  template <int part>
  __device__ __forceinline__ void end_part(const Step& step, int number) {
    apply_derivative<part>();
    if (!step.is(Step::full)) kept_queries(step, number, part).mask(grad_weights);
    write_grad_scores<part>(number);
  }

  /// S, dP, P and f' of a step before which nothing is under way.
  __device__ __forceinline__ void begin(const Step& now, int step) {
    plan.tiles().wait(now.number);
    wait_for_turn(plan.key_filled(), now.number);
    issue_scores(now.number, step, 0);
    if constexpr (Plan::computes_grad_scores) wait_for_turn(plan.value_filled(), now.number);
    wait_for_turn(plan.grad_output_filled(), step);
    if constexpr (Plan::computes_grad_scores) issue_grad_weights(step, 0);
    weigh(now, step);
    // Else what these held before would take registers from the function.
    if constexpr (Config::computes_grad_key) {
      for (float& sum : grad_key) sum = 0.0f;
    }
    if constexpr (Config::computes_grad_value) {
      for (float& sum : grad_value) sum = 0.0f;
    }
  }

  /// dV, dS unless it is there, and dK of a step, and dQ of the one before, `last`, if it exists; waits for all but dQ.
  __device__ __forceinline__ void differentiate(const Step& now, const Step& last, int step) {
    named_wait(turn_barrier + warpgroup, turn_threads);
    if constexpr (Config::computes_grad_value) issue_grad_value(step, !now.is(Step::begins));
    if constexpr (Plan::computes_grad_scores && parts == 1) {
      apply_derivative<0>();
      write_grad_scores<0>(step);
    }
    if constexpr (Config::computes_grad_key) issue_grad_key(step, !now.is(Step::begins));
    if constexpr (Config::computes_grad_query) {
      if (last.is(Step::exists)) wait_for_turn(plan.grad_scores_written(), step - 1);
      issue_grad_query(last.number, step + 1);
      wait_for_products<1>();
    } else {
      wait_for_products<0>();
    }
    release_step(step);
    if (leads()) plan.grad_output_free()[index_in<Config::stages>(step)].arrive();
  }

  /// After dQ of a step, if it is computed.
  __device__ __forceinline__ void end(const Step& step, int number) {
    if constexpr (Config::computes_grad_query) {
      if (leads()) plan.grad_scores_free()[index_in<Plan::score_stages>(number)].arrive();
      read_behind_wait(grad_query);
      stage_grad_query(step, number);
    }
    if (step.is(Step::ends)) release_keys(step.number);
  }

  __device__ __forceinline__ void finish(const Step& step, int number) {
    if constexpr (Config::computes_grad_query) {
      wait_for_turn(plan.grad_scores_written(), number);
      issue_grad_query(step.number, number);
      wait_for_products<0>();
    }
    end(step, number);
  }

  __device__ __forceinline__ void run() {
    if (warpgroup == 1) named_arrive(turn_barrier, turn_threads);  // the other begins
    Step now = wait_for_step(0);
    int step = 0;
    while (now.is(Step::exists)) {
      begin(now, step);
      Step last{0, now.number, 0};
      while (!now.is(Step::alone)) {
        differentiate(now, last, step);
        const Step next = wait_for_step(step + 1);
        if (next.is(Step::begins)) {
          plan.tiles().wait(next.number);
          wait_for_turn(plan.key_filled(), next.number);
        }
        issue_scores(next.number, step + 1, 0);
        named_arrive(turn_barrier + (warpgroup ^ 1), turn_threads);
        publish_grad_scores(step);
        if constexpr (Config::computes_grad_query) wait_for_products<1>();
        if (last.is(Step::exists)) end(last, step - 1);
        if constexpr (Plan::computes_grad_scores) {
          if (next.is(Step::begins)) wait_for_turn(plan.value_filled(), next.number);
        }
        wait_for_turn(plan.grad_output_filled(), step + 1);
        if constexpr (Plan::computes_grad_scores) issue_grad_weights(step + 1, 0);
        if (now.is(Step::ends)) store_grad_keys(now, step);
        weigh(next, step + 1);
        last = now;
        now = next;
        ++step;
      }
      if (now.is(Step::exists)) {
        differentiate(now, last, step);
        named_arrive(turn_barrier + (warpgroup ^ 1), turn_threads);
        publish_grad_scores(step);
        wait_for_products<0>();
        if (last.is(Step::exists)) end(last, step - 1);
        store_grad_keys(now, step);
        finish(now, step);
        now = wait_for_step(++step);
      } else {
        finish(last, step - 1);
      }
    }
  }
};

}  // namespace gdpa::hopper
