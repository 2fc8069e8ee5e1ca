// The gradients of the tensors that the function reads, on Hopper's tensor cores (WGMMA), with operands loaded by TMA.
//
// dP is the gradient of P, so the gradient of an input of the function at one score is dP * df/dinput. The gradient of
// an element of a tensor is the sum over all scores that read the element. The kernel computes S = Q K^T and
// dP = dO V^T once more. It is persistent, with one CTA on each multiprocessor, and shares its query tiles, its queue
// and its tile scheduler with forward:
//
//     tile scheduler    1 warp             finds the CTA's query tiles and puts them into a queue (tile_scheduler.cuh)
//     producer threads  3, in 3 warps      TMA loads: Q and dO of each tile; K, and V, of its key tiles into `stages`
//     consumers         2 warpgroups or 1  64 queries each: S and dP in registers, then the terms of each score
//
// A consumer issues S and dP of the next key tile, which may be the first of the next query tile, before it computes
// the terms of this one. All operands of the products are in shared memory, so that registers hold S and dP twice.
// common/parameter_terms.cuh has the sums of a warp and of a thread in shared memory. Registers and these sums are
// added to the sums in global memory at the end of a query tile.
//
// Config: struct with
//     using Element, Gradients;       BFloat16 or Float16; src/codegen/gradients.h
//     using Mask, Layout, Epilogue;   window_mask.cuh, packed_layout.cuh, epilogues.cuh
//     int head_dim, head_dim_v;       multiples of 8, at most 256
//     int tile_queries, tile_keys;    128 or 64; 64 or 32
//     int stages, query_stages;       stages of K, and of V; of Q and dO
//     int sum_elements;               elements for which each consumer thread has a sum of its own
//
// Launch: grid any number of CTAs, best one for each multiprocessor. params.grad_parameters are the
//         sums, cleared before.
#pragma once

#include "common/parameter_terms.cuh"
#include "hopper/query_major.cuh"

namespace gdpa::hopper {

/// The stage of Q and dO of a warpgroup.
template <class Config>
constexpr int query_and_grad_output_bytes =
    SwizzledTile<warpgroup_rows, Config::head_dim>::bytes + SwizzledTile<warpgroup_rows, Config::head_dim_v>::bytes;

/// Each stage of the queries has Q, then dO. After the queue come the sums of each warp and of each consumer thread.
template <class Config>
struct ParameterGradientsStorage : QueryMajorStorage<Config, query_and_grad_output_bytes<Config>> {
  using Base = QueryMajorStorage<Config, query_and_grad_output_bytes<Config>>;
  using Base::memory, Base::query, Base::warpgroups;
  using GradOutputTile = SwizzledTile<Base::rows, Config::head_dim_v>;
  static constexpr int consumer_threads = warpgroups * warpgroup_threads;
  using Terms = WarpTerms<Config::tile_keys>;
  using Sums = ThreadSums<consumer_threads>;
  static_assert(Config::Gradients::sum_threads == 0 || Config::Gradients::sum_threads == consumer_threads,
                "each consumer thread has sums");

  static constexpr int terms_at = (Base::end + 15) / 16 * 16;
  static constexpr int sums_at = terms_at + consumer_threads / 32 * Terms::bytes;
  static constexpr int sums_bytes = Config::sum_elements * Sums::bytes_of_element;
  static constexpr int shared_bytes = sums_at + sums_bytes;
  static_assert(shared_bytes <= 227 * 1024, "more than a CTA can have");

  __device__ GradOutputTile grad_output(int number, int warpgroup) const {
    return {query(number, warpgroup).base + static_cast<unsigned>(Base::QueryTile::bytes)};
  }
  /// The sums of a consumer warp.
  __device__ Terms terms(int warp) const {
    return {reinterpret_cast<float*>(memory + terms_at) + warp * Terms::floats};
  }
  __device__ Sums sums() const { return {reinterpret_cast<float*>(memory + sums_at)}; }
};

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
  /// A thread adds the terms of so many key tiles in fp32 before it adds the result to the sum of the element: 4096
  /// terms. If they are equal, the relative error of their sum is at most 2.4e-4.
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

template <class Config>
using parameter_gradients_cta = ParameterGradientsStorage<Config>;

template <class Config>
__device__ void parameter_gradients(const ParameterGradientsArguments& arguments) {
  using Shared = ParameterGradientsStorage<Config>;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const Shared shared{shared_memory};
  if (threadIdx.x == 0) shared.initialise();
  find_tile_range<Config, Shared::threads>(arguments, shared.totals_of_warps(), shared.tile_range());
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (take_registers<Shared>(warpgroup)) {
    const auto without_keys = [](const Work&, int) {};  // the sums of these tiles are 0
    const auto load_grad_output = [&](const auto& tile, int number, int of_warpgroup, int row, unsigned barrier) {
      shared.grad_output(number, of_warpgroup)
          .load(arguments.output.map, barrier, tile.head, Config::Layout::after({tile.query.x, tile.output_y}, row));
    };
    run_query_major_producers<Config>(arguments, shared, without_keys, Shared::query_bytes, load_grad_output);
  } else {
    ParameterGradientsConsumer<Config>{arguments, shared, warpgroup}.run();
  }
}

}  // namespace gdpa::hopper
