// Backward for head dims above 128: the main loops of the two consumer warpgroups.
#pragma once

#include "common/fragment_inputs.cuh"
#include "common/score_scale.cuh"
#include "hopper/wide_backward_products.cuh"

namespace gdpa::hopper {

template <class Config>
struct GradValueConsumer : WideConsumer<Config, Role::value> {
  using Base = WideConsumer<Config, Role::value>;
  using Base::Base, Base::arguments, Base::shared, Base::grad_query, Base::position, Base::before, Base::release;
  using typename Base::Element, typename Base::Shared, typename Base::GradQuery, typename Base::Tile;
  using Activation = typename Config::Activation;

  float scores[32];
  unsigned p[4][4];
  float grad_value[output_columns(Config::head_dim_v) / 2];

  __device__ __forceinline__ void issue_scores(int step) {
    shared.query_pipeline().consumer_wait(step);
    issue_group([&] { multiply_columns<Element, Config::head_dim>(scores, shared.keys(0), shared.queries(step)); });
  }

  /// Computes P, rounded, and f', which goes to the dK consumer. It has read f' of the previous step, because dS of
  /// that step exists.
  template <class Function>
  __device__ __forceinline__ void evaluate_function_of_head(const Function& function, const Tile& tile) {
    const float scale = score_scale<Function>(arguments.scale);
    const auto of_pair = Config::Inputs::of(arguments.common.params, tile.pair(arguments.common.params, position.head));
    const ScoreIndex first = position.first_score(tile);
    FragmentInputs<typename Config::Inputs, FragmentRows::keys> inputs(of_pair, first.key, first.query);
#pragma unroll
    for (int piece = 0; piece < 8; ++piece) {
      float value[4], derivative[4];
      inputs.enter(piece);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        function.value_and_derivative(scores[piece * 4 + i] * scale, inputs.at(i), value[i], derivative[i]);
      }
      if constexpr (Shared::computes_ds) {
        store_shared_chunk(shared.derivatives(piece), {__float_as_uint(derivative[0]), __float_as_uint(derivative[1]),
                                                       __float_as_uint(derivative[2]), __float_as_uint(derivative[3])});
      }
      if constexpr (Config::computes_grad_value) {
        p[piece / 2][piece % 2 * 2] = Element::pack(value[0], value[1]);
        p[piece / 2][piece % 2 * 2 + 1] = Element::pack(value[2], value[3]);
      }
      // Otherwise the compiler evaluates all scores at once, and registers do not suffice.
      if (piece == 3) __syncwarp();
    }
  }

  __device__ __forceinline__ void evaluate(const Tile& tile) {
    Activation::of(arguments.common.params, position.head).visit([&](const auto& function) {
      evaluate_function_of_head(function, tile);
    });
    if constexpr (Shared::computes_ds) named_barrier_arrive(Shared::derivatives_written, Shared::consumer_threads);
    if constexpr (Config::computes_grad_value) {
      if (!position.is_full(tile)) position.valid(arguments, tile).mask(p);
    }
  }

  /// From P of a step to P of the next one; with is_last, to the end of the key tile.
  template <bool is_last>
  __device__ __forceinline__ void compute(const Tile& tile, int step, bool is_first) {
    if constexpr (!is_last) {
      issue_scores(step + 1);
    }
    if constexpr (Config::computes_grad_query) {
      if (!is_first) grad_query.template add<GradQuery::last_chunk>(arguments, tile, before);
    }
    shared.grad_output_pipeline().consumer_wait(step);
    if constexpr (Shared::computes_ds) shared.ds_pipeline().consumer_wait(step);
    if constexpr (Base::has_two_chunks) grad_query.template issue<0>(shared, step);
    if constexpr (Config::computes_grad_value) {
      issue_group([&] { multiply_rows<Element>(grad_value, p, shared.grad_outputs(step), true); });
    }
    if constexpr (Base::has_two_chunks) {
      warpgroup_wait<Config::computes_grad_value ? 1 : 0>();
      grad_query.template add<0>(arguments, tile, position);
    }
    if constexpr (Config::computes_grad_query) {
      grad_query.template issue<GradQuery::last_chunk>(shared, step);
      warpgroup_wait<1>();
    } else {
      warpgroup_wait<0>();
    }
    release(shared.grad_output_pipeline(), step);
    if constexpr (!is_last) {
      release(shared.query_pipeline(), step + 1);
      this->advance(tile);
      evaluate(tile);
    }
    warpgroup_wait<0>();
    if constexpr (Config::computes_grad_query) release(shared.ds_pipeline(), step);
  }

  __device__ __forceinline__ void run(const Tile& tile, int number, int steps, int step) {
    shared.key_pipeline().consumer_wait(number);
    issue_scores(step);
    warpgroup_wait<0>();
    release(shared.query_pipeline(), step);
    evaluate(tile);
    if constexpr (Config::computes_grad_value) clear(grad_value);
    if constexpr (Config::computes_grad_query) grad_query.clear();
    const int last = step + steps - 1;
#pragma unroll 1
    for (bool is_first = true; step < last; ++step, is_first = false) compute<false>(tile, step, is_first);
    compute<true>(tile, last, steps == 1);
    release(shared.key_pipeline(), number);
    if constexpr (Config::computes_grad_query) {
      grad_query.template add<GradQuery::last_chunk>(arguments, tile, position);
    }
    if constexpr (Config::computes_grad_value) {
      const float factor = Activation::of(arguments.common.params, tile.first_head).value_factor();
      this->template store<Config::head_dim_v>(grad_value, factor, arguments.common.params.grad_value, tile.grad_value,
                                               tile);
    }
  }
};

template <class Config>
struct GradKeyConsumer : WideConsumer<Config, Role::key> {
  using Base = WideConsumer<Config, Role::key>;
  using Base::Base, Base::arguments, Base::shared, Base::grad_query, Base::position, Base::before, Base::release;
  using typename Base::Element, typename Base::Shared, typename Base::GradQuery, typename Base::Tile;
  using Activation = typename Config::Activation;

  float dp[32];
  unsigned ds[4][4];
  float grad_key[output_columns(Config::head_dim) / 2];

  __device__ __forceinline__ void issue_dp(int step) {
    shared.grad_output_pipeline().consumer_wait(step);
    issue_group([&] { multiply_columns<Element, Config::head_dim_v>(dp, shared.values(), shared.grad_outputs(step)); });
  }

  /// Computes dS = dP * f', rounded, as an operand in registers, and for dQ also in shared memory, for both consumers.
  __device__ __forceinline__ void make_ds(const Tile& tile, int step) {
    named_barrier_sync(Shared::derivatives_written, Shared::consumer_threads);
#pragma unroll
    for (int piece = 0; piece < 8; ++piece) {
      const uint4 derivative = load_shared_chunk(shared.derivatives(piece));
      float* const of_piece = dp + piece * 4;
      of_piece[0] = times_derivative<Activation>(of_piece[0], __uint_as_float(derivative.x));
      of_piece[1] = times_derivative<Activation>(of_piece[1], __uint_as_float(derivative.y));
      of_piece[2] = times_derivative<Activation>(of_piece[2], __uint_as_float(derivative.z));
      of_piece[3] = times_derivative<Activation>(of_piece[3], __uint_as_float(derivative.w));
    }
    if (!position.is_full(tile)) position.valid(arguments, tile).mask(dp);
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      ds[i / 8][i % 8 / 2] = Element::pack(dp[i], dp[i + 1]);
    }
    if constexpr (Config::computes_grad_query) {
      const unsigned thread = thread_in_warpgroup(), lane = thread % 32;
      const int row = static_cast<int>(thread / 32 * 16 + lane % 16);
      const auto to = shared.ds(step);
      shared.ds_pipeline().producer_acquire(step);
#pragma unroll
      for (int k = 0; k < 4; ++k) store_matrices(to.chunk(row, k * 2 + static_cast<int>(lane / 16)), ds[k]);
      fence_proxy_async_shared();
    }
    shared.ds_pipeline().full_of(step).arrive();
  }

  /// From dP of a step to dP of the next one; with is_last, to the end of the key tile.
  template <bool is_last>
  __device__ __forceinline__ void compute(const Tile& tile, int step, bool is_first) {
    make_ds(tile, step);
    shared.query_pipeline().consumer_wait(step);
    if constexpr (Config::computes_grad_key) {
      issue_group([&] { multiply_rows<Element>(grad_key, ds, shared.queries(step), true); });
    }
    if constexpr (Config::computes_grad_query) {
      if (!is_first) grad_query.template add_row<GradQuery::last_chunk, 0>(arguments, tile, before);
    }
    warpgroup_wait<0>();
    release(shared.query_pipeline(), step);  // early: the dV consumer waits for the next Q
    if constexpr (Config::computes_grad_query) {
      if (!is_first) grad_query.template add_row<GradQuery::last_chunk, 1>(arguments, tile, before);
      shared.ds_pipeline().consumer_wait(step);
      grad_query.template issue<0>(shared, step);
    }
    if constexpr (!is_last) issue_dp(step + 1);
    if constexpr (Base::has_two_chunks) {
      warpgroup_wait<is_last ? 0 : 1>();
      grad_query.template add<0>(arguments, tile, position);
      grad_query.template issue<1>(shared, step);
    }
    warpgroup_wait<0>();
    if constexpr (Config::computes_grad_query) release(shared.ds_pipeline(), step);
    if constexpr (!is_last) {
      release(shared.grad_output_pipeline(), step + 1);
      this->advance(tile);
    }
  }

  __device__ __forceinline__ void run(const Tile& tile, int number, int steps, int step) {
    if constexpr (!Shared::computes_ds) return;
    shared.value_pipeline().consumer_wait(number);
    issue_dp(step);
    warpgroup_wait<0>();
    release(shared.grad_output_pipeline(), step);
    shared.key_pipeline().consumer_wait(number);
    if constexpr (Config::computes_grad_key) clear(grad_key);
    if constexpr (Config::computes_grad_query) grad_query.clear();
    const int last = step + steps - 1;
#pragma unroll 1
    for (bool is_first = true; step < last; ++step, is_first = false) compute<false>(tile, step, is_first);
    release(shared.value_pipeline(), number);
    compute<true>(tile, last, steps == 1);
    release(shared.key_pipeline(), number);
    if constexpr (Config::computes_grad_query) {
      grad_query.template add<GradQuery::last_chunk>(arguments, tile, position);
    }
    if constexpr (Config::computes_grad_key) {
      const float factor = Activation::of(arguments.common.params, tile.first_head).derivative_factor();
      this->template store<Config::head_dim>(grad_key, arguments.scale * factor, arguments.common.params.grad_key,
                                             tile.grad_key, tile);
    }
  }
};

/// The loop of a consumer over the key tiles of the CTA.
template <class Consumer, class Config>
__device__ __forceinline__ void consume(const BackwardArguments& arguments, const WideBackwardStorage<Config>& shared) {
  int step = 0;
  for (int number = 0;; ++number) {
    const auto& tile = shared.tiles().consumer_wait(number);
    const int steps = broadcast_lane_0(tile.steps);
    if (steps == 0) return;
    Consumer(arguments, shared, tile).run(tile, number, steps, step);
    shared.tiles().consumer_release(number);
    step += steps;
  }
}

}  // namespace gdpa::hopper
