// Forward on Hopper's tensor cores (WGMMA), with operands loaded by TMA: O = out_scale * f(scale * Q K^T) V.
//
// The kernel is persistent: one CTA on each multiprocessor computes one query tile after the other. Its warps have
// three roles:
//
//     tile scheduler    1 warp             finds the CTA's query tiles and puts them into a queue (tile_scheduler.cuh)
//     producer threads  3, in 3 warps      TMA loads: Q of each tile; K, and V, of its key tiles into `stages` stages
//     consumers         2 warpgroups or 1  64 queries each: S = Q K^T, P = f(scale * S), O += P V
//
// A consumer issues S of the next key tile, which may be the first of the next query tile, before P V of this one. It
// computes P of the next key tile while the tensor cores compute P V of this one. The pipeline is never drained between
// tiles. The two consumers issue in ping-pong order, so that the products of one run while the other evaluates f. P is
// an operand in registers. f needs no maximum and no sum of a row, so a consumer carries only O from one key tile to
// the next. A consumer stores O of a query tile while the tensor cores compute the second S of the next query tile.
//
// Q is an operand in registers where registers suffice. O then leaves through the shared memory of the next Q.
// Otherwise Q stays in shared memory until the last S of its tile, and O is stored from registers.
//
// Config: struct with
//     using Element, Activation;      BFloat16 or Float16; the part for forward of src/codegen/function.h
//     int head_dim, head_dim_v;       multiples of 8, at most 256
//     int tile_queries, tile_keys;    128 or 64; a multiple of 16 for which wgmma.cuh has a product
//     int stages, query_stages;       stages of K, and of V; of Q
//     bool query_in_registers;
//     BiasTile bias_tile;             of a dense bias of Inputs in shared memory (common/staged_tile.cuh)
//     bool stages_lookups;            Inputs has lookups, which are staged in shared memory (common/staged_lookups.cuh)
//     Pass pass;                      whether the call has two passes, and which one this is (arguments.cuh)
//
// Launch: grid any number of CTAs, best one for each multiprocessor. With the dynamic tile order,
//         the counter and found_nan are zero.
#pragma once

#include "common/fragment_columns.cuh"
#include "common/fragment_inputs.cuh"
#include "hopper/forward_epilogue.cuh"
#include "hopper/forward_storage.cuh"
#include "pipeline/dependent_launch.cuh"

namespace gdpa::hopper {

/// The registers of a consumer warpgroup, its loads of Q, and its products S = Q K^T and O += P V.
template <class Config>
struct ForwardProducts {
  using Element = typename Config::Element;
  using Activation = typename Config::Activation;
  using Shared = ForwardStorage<Config>;
  using Tile = QueryTile<typename Config::Mask>;
  static constexpr int steps = (Config::head_dim + 15) / 16;  ///< of Q K^T
  static constexpr int columns_v = output_columns(Config::head_dim_v);
  static constexpr int key_steps = Config::tile_keys / 16;  ///< of P V
  static constexpr int own_barrier = 1;                     ///< a named barrier for the threads of each warpgroup
  using PingPong = pipeline::PingPong<Shared::warpgroups, own_barrier + Shared::warpgroups>;

  const ForwardArguments& arguments;
  const Shared& shared;
  const int warpgroup;

  unsigned query[steps][4];
  float scores[Config::tile_keys / 2];
  unsigned p[key_steps][4];
  float output[columns_v / 2];

  __device__ __forceinline__ static bool leads() { return thread_in_warpgroup() == 0; }

  __device__ __forceinline__ void load_query(int number) {
    shared.query_pipeline(warpgroup).consumer_wait(number);
    if (!Config::query_in_registers) return;
    const auto rows = shared.query(number, warpgroup);
    const unsigned thread = thread_in_warpgroup(), lane = thread % 32;
    const int row = static_cast<int>(thread / 32 * 16 + lane % 16);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      load_matrices(query[step], rows.chunk(row, step * 2 + static_cast<int>(lane / 16)));
    }
    if constexpr (Activation::multiplies_query) scale_query(shared.tiles()[number].head);
  }

  /// Multiplies Q by the factor from Q K^T to the argument of the function, or by 1 if the function multiplies each
  /// score.
  __device__ __forceinline__ void scale_query(int head) {
    const SplitFactor<Element> factor(Activation::query_factor_of(arguments.common.params, head, arguments.scale));
#pragma unroll
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) query[step][i] = factor.times(query[step][i]);
    }
  }

  /// Releases the stage of Q of a tile. If O uses the stage, O of the previous tile must have left it.
  __device__ __forceinline__ void release_query(int number) {
    if (!leads()) return;
    if (Config::query_in_registers) tma_store_wait_read();
    shared.query_pipeline(warpgroup).consumer_release(number);
  }

  __device__ __forceinline__ void issue_scores(int number, int stage) {
    issue_group([&] {
      if constexpr (Config::query_in_registers) {
        multiply_columns<Element>(scores, query, shared.keys().stage(stage));
      } else {
        multiply_columns<Element, Config::head_dim>(scores, shared.query(number, warpgroup),
                                                    shared.keys().stage(stage));
      }
    });
  }

  /// O += P V. With `add` false, the accumulators begin here.
  __device__ __forceinline__ void issue_output(int stage, bool add) {
    issue_group([&] { multiply_rows<Element>(output, p, shared.values().stage(stage), add); });
  }
};

/// Returns the address of the number that tells whether O has a NaN: one for each CTA, or one for all CTAs with the
/// dynamic order.
__device__ __forceinline__ int* found_nan_of_cta(const ForwardArguments& arguments) {
  return arguments.found_nan + (arguments.tiles.order == TileOrder::dynamic ? 0 : blockIdx.x);
}

/// One consumer warpgroup, with the main loop.
template <class Config>
struct ForwardConsumer : ForwardEpilogue<Config, ForwardProducts<Config>> {
  using Base = ForwardEpilogue<Config, ForwardProducts<Config>>;
  using Base::arguments, Base::begin_with_query, Base::issue_output, Base::issue_scores, Base::key_steps, Base::leads,
      Base::load_query, Base::output, Base::own_barrier, Base::shared, Base::release_query, Base::scores,
      Base::store_from_registers, Base::store_through_query, Base::warpgroup, Base::p;
  using typename Base::Activation, typename Base::Element, typename Base::PingPong, typename Base::Shared,
      typename Base::Tile;
  static constexpr bool has_addend = Config::Epilogue::has_addend;
  static constexpr bool has_int_flag = Config::bias_tile != BiasTile::none || (has_addend && Config::head_dim > 64);
  using Iterator = KeyTileIterator<Config, typename LoopFlag<has_int_flag>::Type>;
  using TileInputs = FragmentInputs<typename Config::Inputs, FragmentRows::queries, Config::tile_keys,
                                    Config::bias_tile, Config::stages_lookups>;
  /// If the valid keys of a query are not one range, the mask has many intermediate results. It is then evaluated after
  /// P V, when the registers of P are free. Otherwise the words of a partial tile are computed during the wait for S.
  /// With inputs of the scores, with an addend, and in the second pass, words would spill. Ranges are then computed
  /// after f.
  static constexpr bool masks_late = !Config::Mask::keys_are_range;
  static constexpr bool masks_early =
      !masks_late && Config::Inputs::leaves_registers && !has_addend && Config::pass != Pass::second;
  using Valid = typename FragmentOf<Config::tile_keys / 8, !masks_late && !masks_early>::Type;

  bool found_nan = false;  ///< in O of the thread's rows

  /// The first element of S of this thread, in the rows of a key tile: its query, and its key in the sequence.
  __device__ __forceinline__ int first_query_of(const Tile& tile) const {
    const unsigned thread = thread_in_warpgroup();
    return tile.first_query + warpgroup * Shared::rows + static_cast<int>(thread / 32 * 16 + thread % 32 / 4);
  }
  __device__ __forceinline__ static int first_key_of(const Tile& tile, int key_tile) {
    return tile.keys.first_row + tile.keys.row_offset(key_tile, Config::tile_keys) +
           static_cast<int>(thread_in_warpgroup() % 4 * 2);
  }

  __device__ __forceinline__ auto inputs_of_pair(const Tile& tile) const {
    return Config::Inputs::of(arguments.common.params, tile.pair(arguments.common.params));
  }

  __device__ __forceinline__ typename TileInputs::Staged staged_inputs() const {
    return shared.inputs(warpgroup * 4 + static_cast<int>(thread_in_warpgroup() / 32));
  }

  /// Begins the copy of the elements of a dense bias for a key tile, after the function has read the elements of
  /// the tile before.
  __device__ __forceinline__ void begin_inputs(const Tile& tile, int key_tile) const {
    const auto lane = static_cast<int>(thread_in_warpgroup() % 32);
    staged_inputs().tile().begin_copy(inputs_of_pair(tile), first_query_of(tile) - lane / 4,
                                      first_key_of(tile, key_tile) - lane % 4 * 2);
  }

  /// The inputs of the scores of a key tile. Made during the wait for S: the tensors may be far from the processor.
  __device__ __forceinline__ TileInputs inputs_of(const Tile& tile, int key_tile) const {
    const auto of_pair = inputs_of_pair(tile);
    if (key_tile == 0) staged_inputs().begin_rows(of_pair, first_query_of(tile) - lane_index() / 4);
    return {of_pair, first_query_of(tile), first_key_of(tile, key_tile), staged_inputs()};
  }

  /// P in fp32, in the registers of S. `function` is the function of the tile's head.
  template <class Function, class InputsOfForm>
  __device__ __forceinline__ void apply_function_of_head(const Function& function, InputsOfForm& inputs) {
    constexpr bool scales = Function::scales_scores && !Function::multiplies_query;
    const float scale = arguments.scale * Function::score_factor;
#pragma unroll
    for (int group = 0; group < Config::tile_keys / 8; ++group) {
      inputs.enter(group);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores[group * 4 + i];
        const float x = scales ? score * scale : score;
        score =
            Config::pass == Pass::first ? function.value_of_finite(x, inputs.at(i)) : function.value(x, inputs.at(i));
      }
      inputs.leave(group);
    }
  }

  __device__ __forceinline__ void apply_function(const Activation& activation, TileInputs& inputs) {
    activation.visit(
        [&](const auto& function) { inputs.visit([&](auto& of_form) { apply_function_of_head(function, of_form); }); });
  }

  /// A NaN in P makes a whole row of O NaN, so that one column suffices to find it. No short-circuit: a branch would
  /// end the uniform registers of the main loop, and each product would move its descriptor from vector registers.
  __device__ __forceinline__ void look_for_nan(const Tile& tile) {
    if (Config::pass != Pass::first || !Activation::bounds_scores) return;
    const unsigned thread = thread_in_warpgroup();
    const int row = warpgroup * Shared::rows + static_cast<int>(thread / 32 * 16 + thread % 32 / 4);
    const int rows = tile.length_q - tile.first_query;
    const bool is_low_nan = output[0] != output[0], is_high_nan = output[2] != output[2];
    found_nan |= (is_low_nan & (row < rows)) | (is_high_nan & (row + 8 < rows));
  }

  /// The valid scores of a key tile.
  __device__ __forceinline__ Valid valid_scores(const Tile& tile, int key_tile) const {
    return Config::Mask::of(arguments.common.params, tile.pair(arguments.common.params))
        .template rows<Valid>(first_query_of(tile), first_key_of(tile, key_tile));
  }

  /// Selects 0 for the elements of P outside the valid scores. A product with 0 would not do, since f(0) may be
  /// infinite.
  __device__ __forceinline__ void apply_mask(const Valid& valid) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < Config::tile_keys / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (!valid.holds(half, j * 8 + i)) scores[j * 4 + half * 2 + i] = 0.0f;
        }
      }
    }
  }

  __device__ __forceinline__ void pack_p() {
#pragma unroll
    for (int step = 0; step < key_steps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[step][i] =
            Element::template pack<Activation::clamps_at_zero>(scores[step * 8 + i * 2], scores[step * 8 + i * 2 + 1]);
      }
    }
  }

  __device__ __forceinline__ void store_output(const Tile& tile, int number) {
    look_for_nan(tile);
    if constexpr (Config::query_in_registers) {
      store_through_query(tile, number);
    } else {
      store_from_registers(tile, number);
    }
  }

  /// Whether S of a key tile is the last reader of Q in shared memory. An addend is read after the first S of its tile.
  __device__ __forceinline__ static bool scores_release_query(const Iterator& at) {
    return !Config::query_in_registers && at.ends() && !(has_addend && at.key_tile == 0);
  }

  /// If Q is the addend, begins O of a query tile with it, before the first P V of the tile: after the epilogue of the
  /// previous query tile, and before Q of the next one is in registers.
  __device__ __forceinline__ void begin_output(const Iterator& at) {
    if (!has_addend || at.key_tile > 0) return;
    begin_with_query(shared.tiles()[at.number], at.number);
    if constexpr (!Config::query_in_registers) {
      fence_proxy_async_shared();  // as for load_query
      named_barrier_sync(own_barrier + warpgroup, warpgroup_threads);
      if (at.ends()) release_query(at.number);
    }
  }
  /// Whether P V of a key tile is added to O, or begins it.
  __device__ __forceinline__ static bool adds_to_output(const Iterator& at) { return has_addend || at.key_tile > 0; }

  __device__ __forceinline__ void run() {
    const typename Shared::TileQueue queue = shared.tiles();
    Iterator now(queue.consumer_wait(0), 0);  // the key tile of P, and of the next P V
    if (now.key_tiles == 0) return;
    if (warpgroup == 1) PingPong::arrive(warpgroup);  // warpgroup 0 issues first

    begin_inputs(queue[0], 0);
    load_query(0);
    if (Config::query_in_registers) {
      fence_proxy_async_shared();  // before a TMA load overwrites Q (docs/kernels/hopper-memory-model.md)
      named_barrier_sync(own_barrier + warpgroup, warpgroup_threads);
      release_query(0);
    }
    shared.key_pipeline().consumer_wait(now.state);
    issue_scores(0, 0);
    Iterator next = now.after(queue);  // the key tile of the next Q K^T
    const auto first = Activation::of(arguments.common.params, queue[0].head);
    TileInputs first_inputs = inputs_of(queue[0], 0);
    warpgroup_wait<0>();
    if (leads() && now.keeps_keys == 0) shared.key_pipeline().consumer_release(0);
    if (scores_release_query(now)) release_query(0);
    apply_function(first, first_inputs);
    if (!now.full) apply_mask(valid_scores(queue[0], 0));
    if (next.key_tiles > 0) {
      begin_inputs(queue[next.number], next.key_tile);
      shared.key_pipeline().consumer_wait(next.state);
    }
    pack_p();

    while (next.key_tiles > 0) {
      const bool ends = next.key_tile == 0;  // now is the last key tile of its query tile
      // O of the previous query tile is leaving through the stage of Q.
      const bool has_stored = Config::query_in_registers && now.key_tile == 0 && now.number > 0;
      begin_output(now);
      if (ends) {
        if (has_stored) release_query(now.number);
        load_query(next.number);
      }
      PingPong::wait(warpgroup);
      issue_scores(next.number, next.state.stage);
      shared.value_pipeline().consumer_wait(now.state);
      issue_output(now.state.stage, adds_to_output(now));
      PingPong::arrive(warpgroup);
      // The look-up happens here, where the warps wait for S anyway.
      const Iterator after = next.after(queue);
      if (has_stored && !ends) release_query(now.number);
      // The parameters of the function and the inputs of the rows arrive from memory during the wait.
      const auto activation = Activation::of(arguments.common.params, queue[next.number].head);
      TileInputs inputs = inputs_of(queue[next.number], next.key_tile);
      Valid valid;
      if (masks_early && !next.full) valid = valid_scores(queue[next.number], next.key_tile);
      warpgroup_wait<1>();
      if (leads() && next.keeps_keys == 0) shared.key_pipeline().consumer_release(next.state);
      if (scores_release_query(next)) release_query(next.number);
      apply_function(activation, inputs);
      if (!masks_late && !next.full) {
        apply_mask(masks_early ? valid : valid_scores(queue[next.number], next.key_tile));
      }
      // This wait is for the next products. It also begins a new basic block: the compiler would otherwise move the
      // function below the wait for P V.
      if (after.key_tiles > 0) {
        begin_inputs(queue[after.number], after.key_tile);
        shared.key_pipeline().consumer_wait(after.state);
      }
      warpgroup_wait<0>();
      if (leads() && now.keeps_keys == 0) shared.value_pipeline().consumer_release(now.state);
      const int number = now.number;
      now = next;
      next = after;
      if (masks_late && !now.full) apply_mask(valid_scores(queue[now.number], now.key_tile));
      pack_p();
      if (ends) store_output(queue[number], number);
    }
    begin_output(now);
    // Takes the last arrival of warpgroup 1, so that the named barrier has none left when the kernel ends.
    if (warpgroup == 0) PingPong::wait(warpgroup);
    shared.value_pipeline().consumer_wait(now.state);
    issue_output(now.state.stage, adds_to_output(now));
    warpgroup_wait<0>();
    if (Config::query_in_registers) {
      // No Q follows, so nobody has waited until O of an earlier tile left this stage.
      if (leads()) tma_store_wait_read();
      named_barrier_sync(own_barrier + warpgroup, warpgroup_threads);
    }
    store_output(queue[now.number], now.number);
    if (Config::query_in_registers && leads()) tma_store_wait();
    if (Config::pass == Pass::first && found_nan) *found_nan_of_cta(arguments) = 1;
  }
};

template <class Config>
__device__ __forceinline__ void forward(const ForwardArguments& arguments) {
  using Shared = ForwardStorage<Config>;
  if (Config::pass == Pass::first) allow_next_kernel();
  if (Config::pass == Pass::second && *found_nan_of_cta(arguments) == 0) return;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const Shared shared{shared_memory};
  if (threadIdx.x == 0) {
    if (Config::pass == Pass::first && arguments.tiles.order != TileOrder::dynamic) *found_nan_of_cta(arguments) = 0;
    shared.initialise();
  }
  find_tile_range<Config, Shared::threads>(arguments, shared.totals_of_warps(), shared.tile_range());
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (take_registers<Shared>(warpgroup)) {
    run_query_major_producers<Config>(
        arguments, shared,
        [&](const Work& work, int lane) { write_without_keys<Config>(arguments.common.params, work, lane); },
        Shared::QueryTile::bytes, [](const auto&, auto...) {});
  } else {
    ForwardConsumer<Config>{arguments, shared, warpgroup}.run();
  }
}

}  // namespace gdpa::hopper
