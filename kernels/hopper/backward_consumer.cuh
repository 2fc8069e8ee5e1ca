// Backward: the main loop of the consumer warpgroups with keys.
#pragma once

#include "common/fragment_inputs.cuh"
#include "common/score_scale.cuh"
#include "hopper/backward_gradients.cuh"
#include "hopper/backward_warpgroup.cuh"
#include "hopper/valid_queries.cuh"

namespace gdpa::hopper {

/// A consumer warpgroup with keys.
template <class Config>
struct BackwardConsumer : BackwardWarpgroup<Config> {
  using Base = BackwardWarpgroup<Config>;
  using Base::arguments, Base::grad_key, Base::grad_query, Base::ds, Base::grad_value, Base::dp, Base::issue_grad_key,
      Base::issue_grad_query, Base::issue_grad_value, Base::issue_dp, Base::issue_scores, Base::leads,
      Base::part_queries, Base::part_steps, Base::parts, Base::shared, Base::scores, Base::stage_grad_query,
      Base::store_grad_keys, Base::tile_of, Base::warpgroup, Base::p;
  using typename Base::Activation, typename Base::Element, typename Base::PingPong, typename Base::Shared,
      typename Base::Tile;

  /// The head of a step, and the position of its query tile.
  __device__ __forceinline__ int head_of(int number) const { return read_of_step(shared, number, &Step::head); }
  __device__ __forceinline__ int position_of(int number) const { return read_of_step(shared, number, &Step::position); }

  using Gradients = typename Config::Gradients;
  static constexpr bool has_gradients = Gradients::are_of_numbers || Gradients::are_of_scores;
  static_assert(!has_gradients || (parts == 1 && Shared::computes_ds), "S and dP, or dS, of all queries");
  static_assert(!has_gradients || !Shared::has_batch_map, "the sums end with the list of the query tiles of one entry");
  Gradients gradients;
  using Mask = typename Config::Mask;
  using TileInputs =
      FragmentInputs<typename Config::Inputs, FragmentRows::keys, 0, BiasTile::none, Config::has_lookups>;

  /// The first key of this consumer, and the first query of a part of a step.
  __device__ __forceinline__ int first_key_of(const Step& step) const {
    return tile_of(step).first_key + warpgroup * Shared::rows;
  }
  __device__ __forceinline__ int first_query_of(const Step& step, int position, int part) const {
    const auto& queries = tile_of(step).queries;
    return queries.first_row + queries.row_offset(position, Config::tile_queries) + part * part_queries;
  }

  /// The inputs of the scores of a part of a step. Made during the wait for S, because a load takes long.
  template <int part>
  __device__ __forceinline__ TileInputs inputs_of(const Step& step, int number) const {
    const ScoreIndex first = score_index(first_query_of(step, position_of(number), part), first_key_of(step));
    const SequencePair pair = tile_of(step).pair(arguments.common.params, head_of(number));
    return {Config::Inputs::of(arguments.common.params, pair), first.key, first.query};
  }

  /// Begins to load the elements of a dense bias for a step into the L1 cache, so that scores wait less for them. A
  /// warp has 16 keys. A lane loads one cache line for each of its queries, because the keys of a query are adjacent in
  /// memory.
  __device__ __forceinline__ void prefetch_bias(const Step& step, int number) const {
    if constexpr (Config::prefetches_bias) {
      if (!step.is(Step::exists)) return;
      const SequencePair pair = tile_of(step).pair(arguments.common.params, head_of(number));
      const auto of_pair = Config::Inputs::of(arguments.common.params, pair);
      const int first_query = first_query_of(step, position_of(number), 0) + lane_index();
      const int first_key = first_key_of(step) + static_cast<int>(thread_in_warpgroup() / 32) * 16;
      const int key = min(first_key, of_pair.last_tile_key());
#pragma unroll
      for (int i = 0; i < Config::tile_queries; i += 32) prefetch_line(of_pair.tile_row(first_query + i) + key);
    }
  }

  /// The out_scale of an entry, if it multiplies P and dS because the entries of a key tile differ in it.
  __device__ __forceinline__ float entry_scale_of(const Step& step) const {
    return Config::scales_entries ? tile_of(step).out_scale : 1.0f;
  }

  /// Computes P, rounded, and f', in the registers of S. `function` is the function of the head.
  template <int part, class Function, class InputsOfForm>
  __device__ __forceinline__ void apply_function_of_head(const Function& function, InputsOfForm& inputs,
                                                         float entry_scale) {
    const float scale = score_scale<Function>(arguments.scale);
    float(&of_part)[part_queries / 2] = scores[part];
#pragma unroll
    for (int group = 0; group < part_queries / 8; ++group) {
      inputs.enter(group);
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        float value[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& score = of_part[group * 4 + i + j];
          float derivative;
          function.value_and_derivative(score * scale, inputs.at(i + j), value[j], derivative);
          if constexpr (Config::scales_entries) value[j] *= entry_scale;
          if constexpr (Shared::computes_ds) score = derivative;
        }
        if constexpr (Config::computes_grad_value) {
          p[part * part_steps + group / 2][group % 2 * 2 + i / 2] = Element::pack(value[0], value[1]);
        }
      }
    }
  }

  template <int part>
  __device__ __forceinline__ void apply_function(const Activation& activation, TileInputs& inputs, float entry_scale) {
    activation.visit([&](const auto& function) {
      inputs.visit([&](auto& of_form) { apply_function_of_head<part>(function, of_form, entry_scale); });
    });
  }

  /// Selects 0 for P outside the valid range; and for f', unless dS is masked. dS is 0 then, if dP is finite.
  template <int part>
  __device__ __forceinline__ void mask(const ValidQueries<Mask>& valid) {
    constexpr float no_derivative = Activation::derivative_lacks_one ? -1.0f : 0.0f;
    if constexpr (Config::computes_grad_value) valid.mask(p + part * part_steps);
    if constexpr (Shared::computes_ds && parts == 1) valid.mask(scores[part], no_derivative);
  }

  /// Computes P and dS, rounded, and terms of the gradients of numbers. `holds(i)`: whether accumulator i is valid.
  template <class Holds>
  __device__ __forceinline__ void apply_function_with_gradients(const Activation& function, Holds holds) {
    const float scale = score_scale<Activation>(arguments.scale);
#pragma unroll
    for (int i = 0; i < part_queries / 2; i += 2) {
      float value[2], of_score[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float terms[Gradients::numbers];
        function.value_and_terms(scores[0][i + j] * scale, dp[i + j], value[j], of_score[j], terms);
        if (holds(i + j)) {
          gradients.add(terms);
        } else {
          value[j] = of_score[j] = 0.0f;
        }
      }
      if constexpr (Config::computes_grad_value) p[i / 8][i % 8 / 2] = Element::pack(value[0], value[1]);
      ds[i / 8][i % 8 / 2] = Element::pack(of_score[0], of_score[1]);
    }
  }

  /// dS = dP * f', in the registers of dP.
  template <int part>
  __device__ __forceinline__ void apply_derivative(float entry_scale) {
#pragma unroll
    for (int i = 0; i < part_queries / 2; ++i) {
      dp[i] = times_derivative<Activation>(dp[i], scores[part][i]);
      if constexpr (Config::scales_entries) dp[i] *= entry_scale;
    }
  }

  /// Rounds dS, as an operand in registers, and for dQ also in shared memory, for both consumers.
  template <int part>
  __device__ __forceinline__ void write_ds(int step) {
#pragma unroll
    for (int i = 0; i < part_queries / 2; i += 2) {
      ds[part * part_steps + i / 8][i % 8 / 2] = Element::pack(dp[i], dp[i + 1]);
    }
    share_ds<part>(step);
  }
  template <int part>
  __device__ __forceinline__ void share_ds(int step) {
    if constexpr (!Config::computes_grad_query) return;
    const unsigned thread = thread_in_warpgroup(), lane = thread % 32;
    const int row = warpgroup * Shared::rows + static_cast<int>(thread / 32 * 16 + lane % 16);
    const auto tile = shared.ds(step);
    if (part == 0) shared.ds_pipeline().producer_acquire(step);
#pragma unroll
    for (int k = part * part_steps; k < (part + 1) * part_steps; ++k) {
      store_matrices(tile.chunk(row, k * 2 + static_cast<int>(lane / 16)), ds[k]);
    }
  }
  __device__ __forceinline__ void publish_ds(int step) const {
    if constexpr (!Config::computes_grad_query) return;
    fence_and_arrive_by_warp(shared.ds_pipeline().full_of(step));
  }

  /// After the last product with K of a key tile, and after the last read of its description in the queue.
  __device__ __forceinline__ void release_keys(const Step& step) {
    if (step.is(Step::ends) && leads()) {
      shared.key_pipeline().consumer_release(step.number);
    }
    if (step.is(Shared::ends_item)) shared.tiles().consumer_release(Shared::item_of(step));
  }

  /// After the warp's last read of the description of the step, and the last product with Q.
  __device__ __forceinline__ void release_step(int number) const {
    if (lane_index() == 0) shared.query_pipeline().consumer_release(number);
  }

  __device__ __forceinline__ ValidQueries<Mask> valid_queries(const Step& step, int number, int part) const {
    // Without launder, the address of the step stays in registers, and an exact function spills.
    const int position = position_of(static_cast<int>(launder(number)));
    const SequencePair pair = tile_of(step).pair(arguments.common.params, head_of(number));
    return {Mask::of(arguments.common.params, pair), first_key_of(step), first_query_of(step, position, part)};
  }

  /// Computes P and f' of a step, and dS if it has two parts. S and dP of the first part have been issued. S of the
  /// second part follows the function of the first part: if it were earlier, registers would not suffice.
  template <int part>
  __device__ __forceinline__ void compute_p_of_part(const Step& step, int number) {
    constexpr int products_after_scores = Shared::computes_ds ? 1 : 0;  // dP
    const auto activation = Activation::of(arguments.common.params, head_of(number));
    TileInputs inputs = inputs_of<part>(step, number);
    const float entry_scale = entry_scale_of(step);
    if constexpr (part == 0) warpgroup_wait<products_after_scores>();
    apply_function<part>(activation, inputs, entry_scale);
    gradients.note(inputs);
    // A branch, because the end of a basic block keeps the function above the wait for dP.
    if (!step.is(Step::full)) mask<part>(valid_queries(step, number, part));
    if constexpr (part + 1 < parts) {
      issue_scores(step.number, number, part + 1);
      if constexpr (Shared::computes_ds) {
        warpgroup_wait<1>();
        end_part<part>(step, number);
        issue_dp(number, part + 1);
      }
      warpgroup_wait<products_after_scores>();
      compute_p_of_part<part + 1>(step, number);
    } else if constexpr (Shared::computes_ds) {
      warpgroup_wait<0>();
      if (step.is(Step::ends) && leads()) shared.value_pipeline().consumer_release(0);
      if constexpr (parts > 1) end_part<part>(step, number);
    }
  }

  /// Computes dS of a part, 0 outside the valid range.
  template <int part>
  __device__ __forceinline__ void end_part(const Step& step, int number) {
    apply_derivative<part>(entry_scale_of(step));
    if (!step.is(Step::full)) valid_queries(step, number, part).mask(dp);
    write_ds<part>(number);
  }

  /// Computes P, dS and the terms of the gradients of numbers, of a step whose S and dP have been issued.
  __device__ __forceinline__ void compute_p_and_gradients(const Step& step, int number) {
    const int head = head_of(number);
    const auto function = Activation::of(arguments.common.params, head);
    warpgroup_wait<0>();
    if (step.is(Step::ends) && leads()) shared.value_pipeline().consumer_release(0);
    warpgroup_fence_operand(scores[0]);
    warpgroup_fence_operand(dp);
    if (step.is(Step::full)) {
      apply_function_with_gradients(function, [](int) { return true; });
    } else {
      const ValidQueries<Mask> valid = valid_queries(step, number, 0);
      apply_function_with_gradients(function, [&](int i) { return valid.holds(i); });
    }
    // After the last step of the CTA, S and dP are of old data. Their terms must not reach the sums.
    const Tile& tile = tile_of(step);
    if (step.is(Step::exists) && ends_sum(position_of(number), tile.queries.size())) {
      gradients.end(arguments.common.params, function, head, tile.out_scale);
    }
  }

  /// Adds dS of a step to the gradients of tensors. While dV and dK are computed: no product uses the registers of dP.
  __device__ __forceinline__ void add_gradients_of_scores(const Step& step, int number) {
    if (!step.is(Step::full)) valid_queries(step, number, 0).mask(dp);
    const int again = static_cast<int>(launder(number));
    const int head = head_of(again), position = position_of(again);
    const Tile& tile = tile_of(step);
    typename Gradients::Tensors tensors(arguments.common.params, tile.pair(arguments.common.params, head));
    const float factor = tile.out_scale * Activation::of(arguments.common.params, head).derivative_factor();
    const int warp = static_cast<int>(thread_in_warpgroup() / 32);
    gradients.add(
        dp, [&] { return inputs_of<0>(step, number); }, tensors, first_query_of(step, position, 0),
        first_key_of(step) + warp * Gradients::keys, factor);
    if (ends_sum(position, tile.queries.size())) gradients.end(tensors, factor);
  }

  __device__ __forceinline__ void compute_p(const Step& step, int number) {
    if constexpr (Gradients::are_of_numbers) {
      compute_p_and_gradients(step, number);
    } else {
      compute_p_of_part<0>(step, number);
    }
  }

  /// Issues S and dP of a step, and computes P and f', when no product is pending.
  __device__ __forceinline__ void begin(const Step& now, int step) {
    shared.tiles().consumer_wait(Shared::item_of(now));
    shared.key_pipeline().consumer_wait(now.number);
    issue_scores(now.number, step, 0);
    if constexpr (Shared::computes_ds) shared.value_pipeline().consumer_wait(now.number);
    shared.grad_output_pipeline().consumer_wait(step);
    if constexpr (Shared::computes_ds) issue_dp(step, 0);
    compute_p(now, step);
    // Otherwise the old accumulators would occupy registers that the function needs.
    if constexpr (Config::computes_grad_key) {
      for (float& sum : grad_key) sum = 0.0f;
    }
    if constexpr (Config::computes_grad_value) {
      for (float& sum : grad_value) sum = 0.0f;
    }
  }

  /// Issues dV and dK of a step, and dQ of the previous step `last`, if any. Waits for dV and dK.
  __device__ __forceinline__ void issue_gradients(const Step& now, const Step& last, int step) {
    PingPong::wait(warpgroup);
    if constexpr (Config::computes_grad_value) issue_grad_value(step, !now.is(Step::begins));
    if constexpr (Shared::computes_ds && parts == 1) {
      if constexpr (Gradients::are_of_numbers) {
        share_ds<0>(step);
      } else {
        apply_derivative<0>(entry_scale_of(now));
        write_ds<0>(step);
      }
    }
    if constexpr (Config::computes_grad_key) issue_grad_key(step, !now.is(Step::begins));
    if constexpr (Gradients::are_of_scores) add_gradients_of_scores(now, step);
    if constexpr (Config::computes_grad_query) {
      if (last.is(Step::exists)) shared.ds_pipeline().consumer_wait(step - 1);
      issue_grad_query(last.number, step + 1);
      warpgroup_wait<1>();
    } else {
      warpgroup_wait<0>();
    }
    release_step(step);
    if (leads()) shared.grad_output_pipeline().consumer_release(step);
  }

  /// Issues S of the step after `now`. The other consumer waits for this, and the broadcast of a step takes long.
  /// Therefore the next step is broadcast later, unless a key tile may begin with it.
  __device__ __forceinline__ void issue_next_scores(const Step& now, const Step& next_of_lane_0, int number) {
    int keys = now.number;
    if (now.is(Shared::ends_item)) {
      const Step next = broadcast(next_of_lane_0);
      if (next.is(Shared::begins_item)) shared.tiles().consumer_wait(Shared::item_of(next));
      if (next.is(Step::begins)) shared.key_pipeline().consumer_wait(next.number);
      keys = next.number;
    }
    issue_scores(keys, number, 0);
  }

  /// After dQ of a step.
  __device__ __forceinline__ void end(const Step& step, int number) {
    if constexpr (Config::computes_grad_query) {
      if (leads()) shared.ds_pipeline().consumer_release(number);
      warpgroup_fence_operand(grad_query);
      stage_grad_query(step, number);
    }
    release_keys(step);
  }

  __device__ __forceinline__ void finish(const Step& step, int number) {
    if constexpr (Config::computes_grad_query) {
      shared.ds_pipeline().consumer_wait(number);
      issue_grad_query(step.number, number);
      warpgroup_wait<0>();
    }
    end(step, number);
  }

  __device__ __forceinline__ void run() {
    if (warpgroup == 1) PingPong::arrive(warpgroup);  // warpgroup 0 issues first
    gradients.clear();
    Step now = broadcast(wait_for_step(shared, 0));
    int step = 0;
    while (now.is(Step::exists)) {
      begin(now, step);
      Step last{0, now.number, 0, 0};
      while (!now.is(Step::only)) {
        issue_gradients(now, last, step);
        const Step next_of_lane_0 = wait_for_step(shared, step + 1);
        issue_next_scores(now, next_of_lane_0, step + 1);
        PingPong::arrive(warpgroup);
        const Step next = broadcast(next_of_lane_0);
        publish_ds(step);
        prefetch_bias(next, step + 1);
        if constexpr (Config::computes_grad_query) warpgroup_wait<1>();
        if (last.is(Step::exists)) end(last, step - 1);
        if constexpr (Shared::computes_ds) {
          if (next.is(Step::begins)) shared.value_pipeline().consumer_wait(next.number);
        }
        shared.grad_output_pipeline().consumer_wait(step + 1);
        if constexpr (Shared::computes_ds) issue_dp(step + 1, 0);
        if (now.is(Step::ends)) store_grad_keys(now, step);
        compute_p(next, step + 1);
        last = now;
        now = next;
        ++step;
      }
      if (now.is(Step::exists)) {
        issue_gradients(now, last, step);
        PingPong::arrive(warpgroup);
        publish_ds(step);
        warpgroup_wait<0>();
        if (last.is(Step::exists)) end(last, step - 1);
        store_grad_keys(now, step);
        finish(now, step);
        now = broadcast(wait_for_step(shared, ++step));
      } else {
        finish(last, step - 1);
      }
    }
  }
};

}  // namespace gdpa::hopper
