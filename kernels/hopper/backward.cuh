// Backward on Hopper's tensor cores (WGMMA), fed by its copy engine (TMA): dK and dV, and dQ by reduction.
//
// One CTA on each multiprocessor stays there and takes tiles of 128 keys, past which the queries stream in tiles of 64.
// Three kinds of warps work side by side:
//
//     dealer    1 warp          takes tiles of keys and lays them into a ring (key_schedule.cuh)
//     loaders   2 warps         K of each tile and Q of its tiles of queries; V and dO; `stages` buffers of Q and of dO
//     sender    1 warp          takes dQ of each tile of queries away (grad_query_sums.cuh)
//     computing 2 warpgroups    64 keys each: S^T = K Q^T and dP^T = V dO^T, then P = f(scale * S) and
//                               dS = dP * f'(scale * S), dV += P^T dO and dK += dS^T Q, whose sums stay in registers
//
// dQ = dS K needs the keys of both warpgroups: dS goes through shared memory, and each warpgroup multiplies for one
// half of the columns, a tile of queries later, when the other's dS has long been there.
//
// For a tile of queries n, a warpgroup issues dV (n), makes dS (n), issues dK (n) and dQ (n - 1), then S and dP of
// n + 1, which may belong to the next tile of keys: nothing is drained between them. It computes P and f' of n + 1
// while the other warpgroup, whose turn it is then, issues its products. Before the first tile and behind the last one
// dQ and S are multiplied of whatever lies in the buffers, and dropped: a product under a condition would make all of
// them wait for each other. A tile of keys with one tile of queries is the last before a new beginning, since K of the
// next but one has no buffer before its dQ is there.
//
// Config: struct with
//     using Element, Activation;      BFloat16 or Float16; what backward takes of src/activation/function.h
//     int head_dim, head_dim_v;       multiples of 8, at most 128
//     int tile_queries, tile_keys;    64, 128
//     int stages;                     buffers of Q, and of dO
//     bool keys_shared;               by the batch, whose parts are then taken for sequences
//     bool ordered;                   additions to sums of dQ (turns.cuh)
//     BackwardPass pass;              whether there are two, and which this is
//
// Launch: grid any number of CTAs, best one for each multiprocessor; block backward_threads<Config>; dynamic shared
//         memory backward_shared_bytes<Config>; after key_schedule. Workspace: the counter of places, zeroed before;
//         the table of tiles; the sums of dQ.
#pragma once

#include "hopper/kept_queries.cuh"
#include "hopper/key_schedule.cuh"
#include "hopper/tile.cuh"
#include "hopper/turns.cuh"
#include "hopper/warpgroup.cuh"
#include "hopper/where_needed.cuh"

namespace gdpa::hopper {

/// What the computing warpgroups have to know of a step, a tile of queries of a tile of keys; where it does not exist,
/// that there are no more. The loader of Q finds it, so that no look-up lies between one product and the next.
struct Step {
  enum : int {
    exists = 1,
    begins = 2,   ///< it is the first of a tile of keys
    ends = 4,     ///< it is the last of it
    alone = 8,    ///< it is the only one; or it does not exist
    full = 16,    ///< scores need no test
    summed = 32,  ///< dQ goes to sums
    turn = 64     ///< from here on: turn_of_sums of the first query
  };
  int flags;
  int number;      ///< of the tile of keys
  int query_tile;  ///< of its head's

  __device__ __forceinline__ bool is(int flag) const { return (flags & flag) != 0; }
};

/// Who is who, and what lies where in shared memory.
template <class Config>
struct BackwardPlan {
  static constexpr int warpgroups = 2;    ///< that compute
  static constexpr int rows = 64;         ///< keys of a warpgroup
  static constexpr int ring_readers = 3;  ///< threads that do not compute: two loaders and the sender
  static constexpr int threads = (warpgroups + 1) * warpgroup_threads;
  static_assert(Config::tile_keys == backward_tile_keys && Config::tile_keys == warpgroups * rows, "64 keys each");
  static_assert(Config::tile_queries == backward_tile_queries, "dS of a key is a row of 128 bytes");
  // 65,536 registers in all, in multiples of 8 a thread.
  static constexpr int computing_registers = 240;
  static constexpr int other_registers = 24;

  static constexpr int key_stages = 2;  ///< K is needed until dQ of its last tile, when S of the next has begun
  static constexpr int score_stages = 2;

  using QueryTile = SwizzledTile<Config::tile_queries, Config::head_dim>;
  using GradOutputTile = SwizzledTile<Config::tile_queries, Config::head_dim_v>;
  using KeysTile = SwizzledTile<Config::tile_keys, Config::head_dim>;
  using ValuesTile = SwizzledTile<Config::tile_keys, Config::head_dim_v>;
  using ScoresTile = SwizzledTile<Config::tile_keys, Config::tile_queries>;  ///< rows are keys
  static constexpr int grad_query_columns = half_columns(Config::head_dim);
  static_assert(KeysTile::columns == warpgroups * grad_query_columns, "half for each warpgroup");
  using GradQueryTile = NarrowTile<grad_query_columns>;
  static constexpr int grad_query_row_bytes = grad_query_columns * static_cast<int>(sizeof(float));

  static constexpr int values_at = key_stages * KeysTile::bytes;
  static constexpr int queries_at = values_at + ValuesTile::bytes;
  static constexpr int grad_outputs_at = queries_at + Config::stages * QueryTile::bytes;
  static constexpr int scores_at = grad_outputs_at + Config::stages * GradOutputTile::bytes;
  static constexpr int sums_at = scores_at + score_stages * ScoresTile::bytes;
  static constexpr int ring_at = sums_at + warpgroups * Config::tile_queries * grad_query_row_bytes;
  static constexpr int barriers_at = ring_at + KeyRing::bytes;
  static constexpr int stage_barriers = Barriers<Config::stages>::bytes;
  static constexpr int key_barriers = Barriers<key_stages>::bytes;
  static constexpr int key_barriers_at = barriers_at + 4 * stage_barriers;
  static constexpr int value_barriers_at = key_barriers_at + 2 * key_barriers;
  static constexpr int score_barriers_at = value_barriers_at + 2 * Barrier::bytes;
  static constexpr int staging_barriers_at = score_barriers_at + 2 * Barriers<score_stages>::bytes;
  static constexpr int turns_at = staging_barriers_at + 2 * warpgroups * Barrier::bytes;
  static constexpr int held_turns = 2;  ///< one that is asked for, one that is not passed on yet
  static constexpr int steps_at = turns_at + held_turns * static_cast<int>(sizeof(HeldTurn));
  static constexpr int shared_bytes = steps_at + Config::stages * static_cast<int>(sizeof(Step));
  static_assert(shared_bytes <= 227 * 1024, "more than a CTA can have");

  unsigned char* memory;

  __device__ unsigned at(int offset) const { return shared_address(memory) + static_cast<unsigned>(offset); }
  __device__ KeysTile keys(int number) const { return KeysTile{at(0)}.stage(index_in<key_stages>(number)); }
  __device__ ValuesTile values() const { return {at(values_at)}; }
  __device__ QueryTile queries(int step) const {
    return QueryTile{at(queries_at)}.stage(index_in<Config::stages>(step));
  }
  __device__ GradOutputTile grad_outputs(int step) const {
    return GradOutputTile{at(grad_outputs_at)}.stage(index_in<Config::stages>(step));
  }
  __device__ ScoresTile grad_scores(int step) const {
    return ScoresTile{at(scores_at)}.stage(index_in<score_stages>(step));
  }

  __device__ KeyRing tiles() const { return KeyRing::at(memory + ring_at); }
  __device__ Barriers<Config::stages> query_filled() const { return {at(barriers_at)}; }
  __device__ Barriers<Config::stages> query_free() const { return {at(barriers_at + stage_barriers)}; }
  __device__ Barriers<Config::stages> grad_output_filled() const { return {at(barriers_at + 2 * stage_barriers)}; }
  __device__ Barriers<Config::stages> grad_output_free() const { return {at(barriers_at + 3 * stage_barriers)}; }
  __device__ Barriers<key_stages> key_filled() const { return {at(key_barriers_at)}; }
  __device__ Barriers<key_stages> key_free() const { return {at(key_barriers_at + key_barriers)}; }
  __device__ Barriers<1> value_filled() const { return {at(value_barriers_at)}; }
  __device__ Barriers<1> value_free() const { return {at(value_barriers_at + Barrier::bytes)}; }
  __device__ Barriers<score_stages> grad_scores_written() const { return {at(score_barriers_at)}; }

  __device__ Barriers<score_stages> grad_scores_free() const {
    return {at(score_barriers_at + Barriers<score_stages>::bytes)};
  }
  /// dQ of a warpgroup's columns, on its way out: a staging place.
  __device__ unsigned grad_query(int warpgroup) const {
    return at(sums_at + warpgroup * Config::tile_queries * grad_query_row_bytes);
  }
  __device__ Barriers<1> grad_query_staged(int warpgroup) const {
    return {at(staging_barriers_at + warpgroup * Barrier::bytes)};
  }
  __device__ Barriers<1> staging_free(int warpgroup) const {
    return {at(staging_barriers_at + (warpgroups + warpgroup) * Barrier::bytes)};
  }

  /// Of the sender.
  __device__ HeldTurn& turn(unsigned number) const { return reinterpret_cast<HeldTurn*>(memory + turns_at)[number]; }

  /// As long as its buffer of Q.
  __device__ Step& step(int number) const {
    return reinterpret_cast<Step*>(memory + steps_at)[index_in<Config::stages>(number)];
  }

  __device__ void initialise() const {
    for (unsigned held = 0; held < held_turns; ++held) turn(held).number = nullptr;
    query_filled().initialise(1);
    query_free().initialise(warpgroups * warpgroup_threads / 32);
    grad_output_filled().initialise(1);
    grad_output_free().initialise(warpgroups);
    key_filled().initialise(1);
    key_free().initialise(warpgroups);
    value_filled().initialise(1);
    value_free().initialise(warpgroups);
    grad_scores_written().initialise(warpgroups * warpgroup_threads / 32);
    grad_scores_free().initialise(warpgroups);
    for (int warpgroup = 0; warpgroup < warpgroups; ++warpgroup) {
      grad_query_staged(warpgroup).initialise(warpgroup_threads / 32);
      staging_free(warpgroup).initialise(1);
    }
    tiles().filled.initialise(key_tile_words);
    tiles().free.initialise(warpgroups * warpgroup_threads + ring_readers);
    publish_barriers();
  }
};

template <class Config>
constexpr int backward_threads = BackwardPlan<Config>::threads;
template <class Config>
constexpr int backward_shared_bytes = BackwardPlan<Config>::shared_bytes;

/// The first loader: K and Q, and what there is to do in each step.
template <class Config>
__device__ void load_keys_and_queries(const BackwardArguments& arguments, const BackwardPlan<Config>& plan) {
  using Plan = BackwardPlan<Config>;
  int step = 0;
  const auto filled = [&] { return plan.query_filled()[index_in<Config::stages>(step)]; };
  for_all_key_tiles(plan.tiles(), [&](const KeyTile& tile, int number) {
    wait_for_turn(plan.key_free(), number, 1);
    const Barrier key_filled = plan.key_filled()[index_in<Plan::key_stages>(number)];
    key_filled.arrive_and_expect(Plan::KeysTile::bytes);
    plan.keys(number).load(arguments.key.map, key_filled.address, tile.key_head, tile.key);
    for_all_query_tiles<Config>(tile, [&](int head, int row, int left) {
      wait_for_turn(plan.query_free(), step, 1);
      const int query_tile = row / Config::tile_queries;
      int flags = Step::exists;
      if (left == tile.steps) flags |= Step::begins;
      if (left == 1) flags |= Step::ends;
      if (tile.steps == 1) flags |= Step::alone;
      if (query_tile >= tile.full_begin && query_tile < tile.full_end) flags |= Step::full;
      if (tile.grad_query_is == GradQuery::added_to_sums) flags |= Step::summed;
      plan.step(step) = {flags + static_cast<int>(turn_of_sums(tile.grad_query)) * Step::turn, number, query_tile};
      filled().arrive_and_expect(Plan::QueryTile::bytes);
      plan.queries(step).load(arguments.query.map, filled().address, head, {tile.query.x + row, tile.query.y});
      ++step;
    });
  });
  wait_for_turn(plan.query_free(), step, 1);
  plan.step(step) = {Step::alone, 0, 0};
  filled().arrive();
}

/// The second loader: V and dO.
template <class Config>
__device__ void load_values_and_grad_outputs(const BackwardArguments& arguments, const BackwardPlan<Config>& plan) {
  using Plan = BackwardPlan<Config>;
  int step = 0;
  const auto filled = [&] { return plan.grad_output_filled()[index_in<Config::stages>(step)]; };
  for_all_key_tiles(plan.tiles(), [&](const KeyTile& tile, int number) {
    wait_for_turn(plan.value_free(), number, 1);
    const Barrier value_filled = plan.value_filled()[0];
    value_filled.arrive_and_expect(Plan::ValuesTile::bytes);
    plan.values().load(arguments.value.map, value_filled.address, tile.key_head, {tile.key.x, tile.value_y});
    for_all_query_tiles<Config>(tile, [&](int head, int row, int) {
      wait_for_turn(plan.grad_output_free(), step, 1);
      filled().arrive_and_expect(Plan::GradOutputTile::bytes);
      plan.grad_outputs(step).load(arguments.grad_output.map, filled().address, head,
                                   {tile.query.x + row, tile.grad_output_y});
      ++step;
    });
  });
  wait_for_turn(plan.grad_output_free(), step, 1);
  filled().arrive();
}

/// The sender: dQ from the staging places to where it goes. What one holds is on its way while the other is filled.
///
/// In deterministic mode it asks for its turn before dQ is there, and passes it on behind the next tile's first half,
/// when both halves have arrived: to ask and to pass on take a way to memory and back each.
template <class Config>
__device__ void send_grad_queries(const BackwardArguments& arguments, const BackwardPlan<Config>& plan) {
  using Plan = BackwardPlan<Config>;
  unsigned parity = 0;  // of the times that each place was filled
  for_all_key_tiles(plan.tiles(), [&](const KeyTile& tile, int) {
    for_all_query_tiles<Config>(tile, [&](int head, int row, int left) {
      if constexpr (Config::ordered) {
        if (tile.grad_query_is == GradQuery::added_to_sums) {
          HeldTurn& turn = plan.turn(parity);
          turn.ask(turn_of(arguments, head, tile.turn + row / Config::tile_queries), tile.key_tile);
          while (!turn.has_come(arguments)) {
            wait_for_stores();
            plan.turn(parity ^ 1).pass_on();
          }
        }
      }
#pragma unroll
      for (int warpgroup = 0; warpgroup < Plan::warpgroups; ++warpgroup) {
        plan.grad_query_staged(warpgroup)[0].wait(parity);
        const unsigned staging = plan.grad_query(warpgroup);
        if (tile.grad_query_is == GradQuery::added_to_sums) {
          const int rows = min(Config::tile_queries, tile.length_q - tile.first_query - row);
          add_to_global(sums_at<Config>(arguments, head, warpgroup, tile.grad_query + row), staging,
                        static_cast<unsigned>(rows * Plan::grad_query_row_bytes));
        } else if (const int column = warpgroup * Plan::grad_query_columns; column < Config::head_dim) {
          const TensorMap& map = arguments.grad_query.map;
          const MapOrigin origin = {tile.query.x + row, tile.grad_query_y};
          if (tile.grad_query_is == GradQuery::stored) {
            store_box(map, staging, column, head, origin);
          } else {
            // What the tile of keys before has stored is there.
            if (left == tile.steps) wait_for_stores();
            add_box(map, staging, column, head, origin);
          }
        }
        commit_stores();
        wait_for_stores_to_read();
        plan.staging_free(warpgroup)[0].arrive();
        if constexpr (Config::ordered) {
          if (warpgroup == 0) {
            wait_for_stores<1>();
            plan.turn(parity ^ 1).pass_on();
          }
        }
      }
      parity ^= 1;
    });
  });
  wait_for_stores();
  if constexpr (Config::ordered) plan.turn(parity ^ 1).pass_on();
}

/// One warpgroup that computes.
template <class Config>
struct Differentiating {
  using Element = typename Config::Element;
  using Activation = typename Config::Activation;
  using Plan = BackwardPlan<Config>;
  static constexpr int queries = Config::tile_queries;
  static constexpr int steps = (Config::head_dim + 15) / 16;      ///< of K Q^T
  static constexpr int steps_v = (Config::head_dim_v + 15) / 16;  ///< of V dO^T
  static constexpr int query_steps = queries / 16;                ///< of P^T dO and dS^T Q
  static constexpr int key_steps = Config::tile_keys / 16;        ///< of dS K
  static constexpr int columns = output_columns(Config::head_dim);
  static constexpr int columns_v = output_columns(Config::head_dim_v);
  using ScoreProduct = WarpgroupProduct<Element, queries>;
  using GradKeyProduct = WarpgroupProduct<Element, columns>;
  using GradValueProduct = WarpgroupProduct<Element, columns_v>;
  using GradQueryProduct = WarpgroupProduct<Element, Plan::grad_query_columns>;
  static constexpr int turn_barrier = 1;  ///< numbered; one for each warpgroup's turn to issue
  static constexpr int turn_threads = Plan::warpgroups * warpgroup_threads;

  const BackwardArguments& arguments;
  const Plan& plan;
  const int warpgroup;

  float scores[queries / 2];  ///< S^T, then f'
  float grad_weights[queries / 2];
  unsigned weights[query_steps][4];
  unsigned grad_scores[query_steps][4];
  float grad_query[Plan::grad_query_columns / 2];
  float grad_key[columns / 2];
  float grad_value[columns_v / 2];

  __device__ __forceinline__ static bool leads() { return fresh_thread_index() == 0; }

  __device__ __forceinline__ void issue_scores(int number, int step) {
    const OperandDescriptor keys = plan.keys(number).from_row(warpgroup * Plan::rows).by_columns();
    const OperandDescriptor queries = plan.queries(step).by_columns();
    begin_products();
#pragma unroll
    for (int k = 0; k < steps; ++k) {
      ScoreProduct::template multiply_add<false>(scores, keys.at(Plan::KeysTile::column_step(k)),
                                                 queries.at(Plan::QueryTile::column_step(k)), k > 0);
    }
    commit_products();
  }

  __device__ __forceinline__ void issue_grad_weights(int step) {
    const OperandDescriptor values = plan.values().from_row(warpgroup * Plan::rows).by_columns();
    const OperandDescriptor grad_outputs = plan.grad_outputs(step).by_columns();
    begin_products();
#pragma unroll
    for (int k = 0; k < steps_v; ++k) {
      ScoreProduct::template multiply_add<false>(grad_weights, values.at(Plan::ValuesTile::column_step(k)),
                                                 grad_outputs.at(Plan::GradOutputTile::column_step(k)), k > 0);
    }
    commit_products();
  }

  __device__ __forceinline__ void issue_grad_value(int step, bool add) {
    const OperandDescriptor grad_outputs = plan.grad_outputs(step).by_rows();
    begin_products();
#pragma unroll
    for (int k = 0; k < query_steps; ++k) {
      GradValueProduct::template multiply_add<true>(grad_value, weights[k],
                                                    grad_outputs.at(Plan::GradOutputTile::row_step(k)), add || k > 0);
    }
    commit_products();
  }

  __device__ __forceinline__ void issue_grad_key(int step, bool add) {
    const OperandDescriptor queries = plan.queries(step).by_rows();
    begin_products();
#pragma unroll
    for (int k = 0; k < query_steps; ++k) {
      GradKeyProduct::template multiply_add<true>(grad_key, grad_scores[k], queries.at(Plan::QueryTile::row_step(k)),
                                                  add || k > 0);
    }
    commit_products();
  }

  /// dS K for this warpgroup's columns.
  __device__ __forceinline__ void issue_grad_query(int number, int step) {
    constexpr unsigned half =
        Plan::grad_query_columns * Element::bytes / Plan::KeysTile::row_bytes * (Plan::KeysTile::block_bytes / 16) +
        Plan::grad_query_columns * Element::bytes % Plan::KeysTile::row_bytes / 16;
    const OperandDescriptor grads = plan.grad_scores(step).by_rows();
    const OperandDescriptor keys = plan.keys(number).by_rows();
    const unsigned column = static_cast<unsigned>(warpgroup) * half;
    begin_products();
#pragma unroll
    for (int k = 0; k < key_steps; ++k) {
      GradQueryProduct::template multiply_add<true, true>(grad_query, grads.at(Plan::ScoresTile::row_step(k)),
                                                          keys.at(Plan::KeysTile::row_step(k) + column), k > 0);
    }
    commit_products();
  }

  __device__ __forceinline__ const KeyTile& tile_of(const Step& step) const { return plan.tiles()[step.number]; }

  /// The step, once Q is there too. One lane reads it for its warp, and tells when it has been read: racecheck does not
  /// see that one lane arrives for others.
  __device__ __forceinline__ Step wait_for_step(int number) const {
    wait_for_turn(plan.query_filled(), number);
    Step step{};
    if (lane_index() == 0) step = plan.step(number);
    return {uniform(step.flags), uniform(step.number), 0};
  }

  /// P, rounded, and f' in the registers of the scores.
  __device__ __forceinline__ void apply_function() {
    const float scale = arguments.scale * Activation::score_factor;
#pragma unroll
    for (int i = 0; i < queries / 2; i += 2) {
      float value[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float derivative;
        Activation::value_and_derivative(scores[i + j] * scale, value[j], derivative);
        scores[i + j] = derivative;
      }
      weights[i / 8][i % 8 / 2] = Element::pack(value[0], value[1]);
    }
  }

  /// Where scores do not count, f' is 0 too: dS is 0 then, but for gradients that are not finite.
  __device__ __forceinline__ void mask(const KeptQueries& kept) {
    kept.mask(weights);
    kept.mask(scores);
  }

  /// dS = dP * f', in the registers of dP.
  __device__ __forceinline__ void apply_derivative() {
#pragma unroll
    for (int i = 0; i < queries / 2; ++i) grad_weights[i] *= scores[i];
  }

  /// dS, rounded, as an operand and to shared memory, where the other warpgroup sees it once it is published.
  __device__ __forceinline__ void write_grad_scores(int step) {
#pragma unroll
    for (int i = 0; i < queries / 2; i += 2) {
      grad_scores[i / 8][i % 8 / 2] = Element::pack(grad_weights[i], grad_weights[i + 1]);
    }
    const unsigned thread = fresh_thread_index(), lane = thread % 32;
    const int row = warpgroup * Plan::rows + static_cast<int>(thread / 32 * 16 + lane % 16);
    const auto tile = plan.grad_scores(step);
    wait_for_turn(plan.grad_scores_free(), step, 1);
#pragma unroll
    for (int k = 0; k < query_steps; ++k) {
      store_matrices(tile.chunk(row, k * 2 + static_cast<int>(lane / 16)), grad_scores[k]);
    }
  }
  __device__ __forceinline__ void publish_grad_scores(int step) const {
    publish_by_warp(plan.grad_scores_written()[index_in<Plan::score_stages>(step)]);
  }

  /// dQ of a step to the staging place, for the sender.
  __device__ __forceinline__ void stage_grad_query(const Step& step, int number) {
    wait_for_turn(plan.staging_free(warpgroup), number, 1);
    if (!step.is(Step::summed)) {
      stage_rounded(arguments.scale * tile_of(step).out_scale);
    } else if (arguments.common.params.out_scale.kind == OutputScale::Kind::number) {
      stage_sums(step.flags / Step::turn, [](float sum) { return sum; });
    } else {
      const float factor = tile_of(step).out_scale;
      stage_sums(step.flags / Step::turn, [factor](float sum) { return sum * factor; });
    }
    publish_by_warp(plan.grad_query_staged(warpgroup)[0]);
  }

  /// As grad_query_sums.cuh says where a row's groups of columns lie: lanes that write different rows meet different
  /// banks.
  template <class Scale>
  __device__ __forceinline__ void stage_sums(int first_turn, Scale scale) {
    const unsigned thread = fresh_thread_index(), lane = thread % 32;
    const unsigned row = thread / 32 * 16 + lane / 4;
    const unsigned to = plan.grad_query(warpgroup) + row * Plan::grad_query_row_bytes + lane % 4 * 8;
    const unsigned turn = turn_of_sums(first_turn + row);
#pragma unroll
    for (unsigned group = 0; group < Plan::grad_query_columns / 8; ++group) {
      const unsigned at = to + group / sums_turns * sums_turns * 32 + (group % sums_turns ^ turn) * 32;
      const float* const sums = grad_query + group * 4;
#pragma unroll
      for (unsigned half = 0; half < 2; ++half) {
        store_shared(at + half * 8 * Plan::grad_query_row_bytes, __float_as_uint(scale(sums[half * 2])),
                     __float_as_uint(scale(sums[half * 2 + 1])));
      }
    }
  }

  __device__ __forceinline__ void stage_rounded(float factor) {
    const unsigned thread = fresh_thread_index(), lane = thread % 32;
    const int row = static_cast<int>(thread / 32 * 16 + lane % 16);
    const typename Plan::GradQueryTile staging{plan.grad_query(warpgroup)};
#pragma unroll
    for (int j = 0; j < Plan::grad_query_columns / 16; ++j) {
      unsigned matrix[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        matrix[i] = Element::pack(grad_query[j * 8 + i * 2] * factor, grad_query[j * 8 + i * 2 + 1] * factor);
      }
      store_matrices(staging.chunk(row, j * 2 + static_cast<int>(lane / 16)), matrix);
    }
  }

  __device__ __forceinline__ void store_grad_keys(const KeyTile& tile) {
    using Gradients = KeyGradients<Config>;
    const Operand &of_key = Gradients::of_key(arguments), &of_value = Gradients::of_value(arguments);
    const int row = warpgroup * Plan::rows;
    const int rows = tile.length_k - tile.first_key - row;
    const float out_scale = tile.out_scale;
    look_for_infinity<Config>(arguments, rows, grad_key, grad_value);
    const auto first = [&](const Operand& operand, int64_t offset) {
      return static_cast<typename Gradients::Element::Storage*>(operand.data) + offset + row * operand.row_stride;
    };
    Gradients::template store<Config::head_dim>(grad_key, arguments.scale * out_scale, first(of_key, tile.grad_key),
                                                of_key.row_stride, rows);
    Gradients::template store<Config::head_dim_v>(grad_value, Activation::value_factor * out_scale,
                                                  first(of_value, tile.grad_value), of_value.row_stride, rows);
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

  __device__ __forceinline__ KeptQueries kept_queries(const Step& step, int number) const {
    int query_tile = 0;
    if (lane_index() == 0) query_tile = plan.step(number).query_tile;
    const KeyTile& tile = tile_of(step);
    return {arguments.common.params.mask, tile, tile.first_key + warpgroup * Plan::rows,
            tile.first_query + uniform(query_tile) * queries};
  }

  /// S, dP, P and f' of a step before which nothing is under way.
  __device__ __forceinline__ void begin(const Step& now, int step) {
    plan.tiles().wait(now.number);
    wait_for_turn(plan.key_filled(), now.number);
    issue_scores(now.number, step);
    wait_for_turn(plan.value_filled(), now.number);
    wait_for_turn(plan.grad_output_filled(), step);
    issue_grad_weights(step);
    wait_for_products<1>();
    apply_function();
    if (!now.is(Step::full)) mask(kept_queries(now, step));
    wait_for_products<0>();
    if (now.is(Step::ends) && leads()) plan.value_free()[0].arrive();
    // Else what these held before would take registers from the function.
    for (float& sum : grad_key) sum = 0.0f;
    for (float& sum : grad_value) sum = 0.0f;
  }

  /// dV, dS and dK of a step, and dQ of the one before, `last`, if it exists; waits for all but dQ.
  __device__ __forceinline__ void differentiate(const Step& now, const Step& last, int step) {
    named_wait(turn_barrier + warpgroup, turn_threads);
    issue_grad_value(step, !now.is(Step::begins));
    apply_derivative();
    write_grad_scores(step);
    issue_grad_key(step, !now.is(Step::begins));
    if (last.is(Step::exists)) wait_for_turn(plan.grad_scores_written(), step - 1);
    issue_grad_query(last.number, step + 1);
    wait_for_products<1>();
    release_step(step);
    if (leads()) plan.grad_output_free()[index_in<Config::stages>(step)].arrive();
  }

  /// Behind dQ of a step.
  __device__ __forceinline__ void end(const Step& step, int number) {
    if (leads()) plan.grad_scores_free()[index_in<Plan::score_stages>(number)].arrive();
    read_behind_wait(grad_query);
    stage_grad_query(step, number);
    if (step.is(Step::ends)) release_keys(step.number);
  }

  __device__ __forceinline__ void finish(const Step& step, int number) {
    wait_for_turn(plan.grad_scores_written(), number);
    issue_grad_query(step.number, number);
    wait_for_products<0>();
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
        issue_scores(next.number, step + 1);
        named_arrive(turn_barrier + (warpgroup ^ 1), turn_threads);
        publish_grad_scores(step);
        wait_for_products<1>();
        if (last.is(Step::exists)) end(last, step - 1);
        if (next.is(Step::begins)) wait_for_turn(plan.value_filled(), next.number);
        wait_for_turn(plan.grad_output_filled(), step + 1);
        issue_grad_weights(step + 1);
        if (now.is(Step::ends)) store_grad_keys(tile_of(now));
        wait_for_products<1>();
        apply_function();
        // A branch: the border of a block keeps the function above the wait for dP.
        if (!next.is(Step::full)) mask(kept_queries(next, step + 1));
        wait_for_products<0>();
        if (next.is(Step::ends) && leads()) plan.value_free()[0].arrive();
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
        store_grad_keys(tile_of(now));
        finish(now, step);
        now = wait_for_step(++step);
      } else {
        finish(last, step - 1);
      }
    }
  }
};

template <class Config>
__device__ void backward(const BackwardArguments& arguments) {
  using Plan = BackwardPlan<Config>;
  if (Config::pass == BackwardPass::again && *arguments.found == 0) return;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const Plan plan{shared_memory};
  if (threadIdx.x == 0) plan.initialise();
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (warpgroup == Plan::warpgroups) {
    give_registers_back<Plan::other_registers>();
    deal_and_copy([&] { deal_key_tiles(arguments, plan.tiles(), plan.key_filled()); },
                  [&] { load_keys_and_queries<Config>(arguments, plan); },
                  [&] { load_values_and_grad_outputs<Config>(arguments, plan); },
                  [&] { send_grad_queries<Config>(arguments, plan); });
  } else {
    take_registers<Plan::computing_registers>();
    Differentiating<Config>{arguments, plan, warpgroup}.run();
  }
}

}  // namespace gdpa::hopper
