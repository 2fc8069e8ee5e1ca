// Gradients of tensors: the main loop of a consumer warpgroup.
#pragma once

#include "hopper/key_tile_iterator.cuh"
#include "hopper/parameter_gradients_storage.cuh"

namespace gdpa::hopper {

/// One consumer warpgroup.
template <class Config>
struct ParameterGradientsConsumer {
  using Element = typename Config::Element;
  using Gradients = typename Config::Gradients;
  using Shared = ParameterGradientsStorage<Config>;
  using Tile = QueryTile<typename Config::Mask>;
  using Iterator = KeyTileIterator<Config>;
  static constexpr int elements = Config::tile_keys / 2;  ///< of S in a thread
  static constexpr int own_barrier = 1;                   ///< a named barrier for the threads of each warpgroup
  /// Key tiles whose terms a thread adds up in fp32. An fp32 sum of 4096 terms of one size has a relative error of at
  /// most 2.4e-4.
  static constexpr int tiles_of_a_sum = 4096 / elements;

  const ParameterGradientsArguments& arguments;
  const Shared& shared;
  const int warpgroup;

  float s[elements], dp[elements];           // of the products, which may be running
  float scores[elements], grad_p[elements];  // of the preceding key tile, scaled

  __device__ __forceinline__ static bool leads() { return thread_in_warpgroup() == 0; }
  /// The index of this thread and of its warp among the consumers.
  __device__ __forceinline__ int thread() const {
    return warpgroup * warpgroup_threads + static_cast<int>(thread_in_warpgroup());
  }
  __device__ __forceinline__ int warp() const { return broadcast_lane_0(thread() / 32); }

  __device__ __forceinline__ void wait_for_operands(const Iterator& at) const {
    if (at.key_tile == 0) shared.query_pipeline(warpgroup).consumer_wait(at.number);
    shared.key_pipeline().consumer_wait(at.state);
    shared.value_pipeline().consumer_wait(at.state);
  }

  /// Releases the operands of a key tile, whose products are complete.
  __device__ __forceinline__ void release_operands(const Iterator& at) const {
    if (!leads()) return;
    if (at.keeps_keys == 0) {
      shared.key_pipeline().consumer_release(at.state);
      shared.value_pipeline().consumer_release(at.state);
    }
    if (at.ends()) shared.query_pipeline(warpgroup).consumer_release(at.number);
  }

  /// Issues S = Q K^T and dP = dO V^T.
  __device__ __forceinline__ void issue_products(const Iterator& at) {
    issue_group([&] {
      multiply_columns<Element, Config::head_dim>(s, shared.query(at.number, warpgroup),
                                                  shared.keys().stage(at.state.stage));
      multiply_columns<Element, Config::head_dim_v>(dp, shared.grad_output(at.number, warpgroup),
                                                    shared.values().stage(at.state.stage));
    });
  }

  /// Adds the terms of the warp at the scores of a key tile.
  __device__ __forceinline__ void add_terms_of(Gradients& gradients, const Tile& tile, const Iterator& at) const {
    const auto score = [&](int n, int i) { return scores[n * 4 + i]; };
    const auto grad = [&](int n, int i) { return grad_p[n * 4 + i]; };
    const int first_query = tile.first_query + warp() * 16;
    const int first_key = tile.keys.first_row + tile.keys.row_offset(at.key_tile, Config::tile_keys);
    const auto mask = Config::Mask::of(arguments.common.params, tile.pair(arguments.common.params));
    add_terms(gradients, shared.terms(warp()), mask, at.full, first_query, first_key, score, grad);
  }

  __device__ __forceinline__ Gradients gradients_of(const Tile& tile) const {
    Gradients gradients = Gradients::of(arguments.common.params, tile.pair(arguments.common.params));
    shared.terms(warp()).begin(gradients);
    if (Gradients::sum_threads > 0) gradients.thread_sums = shared.sums().of_thread(thread());
    return gradients;
  }

  /// Adds the sums of the threads and of the warp to the sums in global memory.
  __device__ __forceinline__ void add_sums(Gradients& gradients) const {
    shared.terms(warp()).end(gradients);
    if constexpr (Gradients::sum_threads > 0) shared.sums().flush(gradients, thread());
    gradients.end();
  }

  __device__ __forceinline__ void release_tile(int number) const {
    named_barrier_sync(own_barrier + warpgroup, warpgroup_threads);
    if (leads()) shared.tiles().consumer_release(number);
  }

  __device__ __forceinline__ void run() {
    const typename Shared::TileQueue queue = shared.tiles();
    Iterator now(queue.consumer_wait(0), 0);
    if (now.key_tiles == 0) return;
    shared.terms(warp()).clear();
    if constexpr (Gradients::sum_threads > 0) shared.sums().clear(thread(), Config::sum_elements);
    wait_for_operands(now);
    issue_products(now);
    Gradients gradients = gradients_of(queue[0]);
    const float scale = arguments.scale;
    while (now.key_tiles > 0) {
      const float factor = queue[now.number].out_scale;
      const Iterator next = now.after(queue);  // while the products run
      warpgroup_wait<0>();
      warpgroup_fence_operand(s);
      warpgroup_fence_operand(dp);
#pragma unroll
      for (int i = 0; i < elements; ++i) {
        scores[i] = s[i] * scale;
        grad_p[i] = dp[i] * factor;
      }
      release_operands(now);
      if (next.key_tiles > 0) wait_for_operands(next);
      // After the last key tile these products are of old data, and nothing reads them: a product under a condition
      // would make the compiler serialise all products.
      issue_products(next);
      add_terms_of(gradients, queue[now.number], now);
      if (now.ends() || now.key_tile % tiles_of_a_sum == tiles_of_a_sum - 1) add_sums(gradients);
      if (now.ends()) {
        release_tile(now.number);
        if (next.key_tiles > 0) gradients = gradients_of(queue[next.number]);
      }
      now = next;
    }
    warpgroup_wait<0>();
  }
};

}  // namespace gdpa::hopper
