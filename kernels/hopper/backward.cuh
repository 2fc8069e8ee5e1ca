// Backward on Hopper's tensor cores (WGMMA), fed by its copy engine (TMA): dK and dV, and dQ by reduction.
//
// One CTA on each multiprocessor stays there and takes tiles of 128 keys, past which the queries stream in tiles of 64,
// or of 128 where dK and dV leave registers for their scores. Three kinds of warps work side by side:
//
//     dealer    1 warp          takes tiles of keys and lays them into a ring (key_schedule.cuh)
//     loader    1 warp          K and V of each tile, Q and dO of its tiles of queries; `stages` buffers of Q and of dO
//     sender    1 warp          takes dQ of each tile of queries away (grad_query_sums.cuh), dK and dV of each of keys
//     keeper    1 warp          of turns, for the sender (turns.cuh)
//     computing 2 warpgroups    64 keys each: S^T = K Q^T and dP^T = V dO^T, then P = f(scale * S) and
//                               dS = dP * f'(scale * S), dV += P^T dO and dK += dS^T Q, whose sums stay in registers
//
// dQ = dS K needs the keys of both warpgroups: dS goes through shared memory, and each warpgroup multiplies for one
// half of the columns, or of 128 queries, a tile of queries later, when the other's dS has long been there.
//
// For a tile of queries n, a warpgroup issues dV (n), makes dS (n), issues dK (n) and dQ (n - 1), then S and dP of
// n + 1, which may belong to the next tile of keys: nothing is drained between them. It computes P and f' of n + 1
// while the other warpgroup, whose turn it is then, issues its products. Of 128 queries it does so in two parts, and
// makes dS there too: P, f' and dP of all of them are more than there are registers. Before the first tile and behind
// the last one dQ and S are multiplied of whatever lies in the buffers, and dropped: a product under a condition would
// make all of them wait for each other. A tile of keys with one tile of queries is the last before a new beginning,
// since K of the next but one has no buffer before its dQ is there.
//
// Config: struct with
//     using Element, Activation;      BFloat16 or Float16; what backward takes of src/activation/function.h
//     int head_dim, head_dim_v;       multiples of 8, at most 128
//     int tile_queries, tile_keys;    64, or 128 with head dims up to 64; 128
//     int stages;                     buffers of Q, and of dO
//     bool keys_shared;               by the batch, whose parts are then taken for sequences
//     bool sums_begun, ordered;       by turns, and these in one order: how tiles of keys add to sums of dQ (turns.cuh)
//     BackwardPass pass;              whether there are two, and which this is
//     bool computes_grad_query, computes_grad_key, computes_grad_value;
//         which gradients the call wants. Products, copies and accumulators that only the others need are left out:
//         without dQ dS stays in registers, and for dV alone there is no dP and V is not loaded.
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
    taken = 64,   ///< the sums come, to be stored with it
    odd = 128,    ///< where they have come an odd number of times before
    turn = 256    ///< from here on: turn_of_sums of the first query
  };
  int flags;
  int number;      ///< of the tile of keys
  int query_tile;  ///< of its head's

  __device__ __forceinline__ bool is(int flag) const { return (flags & flag) != 0; }
};

/// Who is who, and what lies where in shared memory.
template <class Config>
struct BackwardPlan {
  using Element = typename Config::Element;
  static constexpr int warpgroups = 2;                             ///< that compute
  static constexpr int rows = warpgroup_rows;                      ///< keys of a warpgroup
  static constexpr int ring_readers = Config::sums_begun ? 3 : 2;  ///< threads that do not compute
  static constexpr int threads = (warpgroups + 1) * warpgroup_threads;
  static constexpr bool computes_grad_scores = Config::computes_grad_query || Config::computes_grad_key;
  static_assert(Config::tile_keys == backward_tile_keys && Config::tile_keys == warpgroups * rows, "64 keys each");
  static_assert(Config::tile_queries == rows || (Config::tile_queries == warpgroups * rows &&
                                                 Config::head_dim <= box_columns && Config::head_dim_v <= box_columns),
                "registers for the scores of 128 queries");
  static constexpr bool splits_queries = Config::tile_queries > rows;  ///< between the warpgroups, for dQ
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
  static constexpr int grad_query_columns = hopper::grad_query_columns(Config::tile_queries, Config::head_dim);
  static_assert(KeysTile::columns == (splits_queries ? 1 : warpgroups) * grad_query_columns, "what is not split");
  using GradQueryTile = NarrowTile<grad_query_columns>;
  static constexpr int grad_query_row_bytes = grad_query_columns * static_cast<int>(sizeof(float));
  static constexpr int staging_bytes = rows * grad_query_row_bytes;

  /// dK and dV leave in rounds of as many columns as a staging place has; shared ones from registers.
  static constexpr int columns_of_round = splits_queries ? box_columns : staging_bytes / (rows * Element::bytes);
  using RoundTile = SwizzledTile<rows, columns_of_round>;
  static constexpr int rounds_of(int columns) {
    return Config::keys_shared ? 0 : (columns + columns_of_round - 1) / columns_of_round;
  }
  static constexpr int key_rounds = Config::computes_grad_key ? rounds_of(Config::head_dim) : 0;
  static constexpr int value_rounds = Config::computes_grad_value ? rounds_of(Config::head_dim_v) : 0;

  /// How often a staging place was filled behind dQ of so many steps, and dK and dV of so many tiles of keys.
  __device__ static int times_staged(int steps, int tiles) {
    return (Config::computes_grad_query ? steps : 0) + (key_rounds + value_rounds) * tiles;
  }

  static constexpr int values_at = key_stages * KeysTile::bytes;
  static constexpr int queries_at = values_at + ValuesTile::bytes;
  static constexpr int grad_outputs_at = queries_at + Config::stages * QueryTile::bytes;
  static constexpr int scores_at = grad_outputs_at + Config::stages * GradOutputTile::bytes;
  static constexpr int sums_at = scores_at + score_stages * ScoresTile::bytes;
  static constexpr int ring_at = sums_at + warpgroups * staging_bytes;
  static constexpr int due_barrier_at = ring_at + KeyRing::bytes;
  static constexpr int barriers_at = due_barrier_at + Barrier::bytes;
  static constexpr int stage_barriers = Barriers<Config::stages>::bytes;
  static constexpr int key_barriers = Barriers<key_stages>::bytes;
  static constexpr int key_barriers_at = barriers_at + 4 * stage_barriers;
  static constexpr int value_barriers_at = key_barriers_at + 2 * key_barriers;
  static constexpr int score_barriers_at = value_barriers_at + 2 * Barrier::bytes;
  static constexpr int staging_barriers_at = score_barriers_at + 2 * Barriers<score_stages>::bytes;
  static constexpr int turns_at = staging_barriers_at + 4 * warpgroups * Barrier::bytes;
  static constexpr int steps_at = turns_at + HeldTurns::bytes;
  static constexpr int sums_taken_at = steps_at + Config::stages * static_cast<int>(sizeof(Step));
  static constexpr int shared_bytes = sums_taken_at + static_cast<int>(sizeof(unsigned));
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
  __device__ Barrier next_is_due() const { return {at(due_barrier_at)}; }
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
  /// A warpgroup's gradients on their way out: dQ of its columns, dK and dV of its rows.
  __device__ unsigned staging(int warpgroup) const { return at(sums_at + warpgroup * staging_bytes); }
  __device__ Barriers<1> staged(int warpgroup) const { return {at(staging_barriers_at + warpgroup * Barrier::bytes)}; }
  __device__ Barriers<1> staging_free(int warpgroup) const {
    return {at(staging_barriers_at + (warpgroups + warpgroup) * Barrier::bytes)};
  }
  __device__ Barrier sums_have_come(int warpgroup) const {
    return {at(staging_barriers_at + (2 * warpgroups + warpgroup) * Barrier::bytes)};
  }
  __device__ Barrier sums_are_read(int warpgroup) const {
    return {at(staging_barriers_at + (3 * warpgroups + warpgroup) * Barrier::bytes)};
  }

  __device__ HeldTurns turns() const { return HeldTurns::at(memory + turns_at); }

  /// Whether sums have come to the staging places an odd number of times: the sender's, who has no register for it.
  __device__ volatile unsigned& sums_taken() const {
    return *reinterpret_cast<volatile unsigned*>(memory + sums_taken_at);
  }

  /// As long as its buffer of Q.
  __device__ Step& step(int number) const {
    return reinterpret_cast<Step*>(memory + steps_at)[index_in<Config::stages>(number)];
  }

  __device__ void initialise() const {
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
      staged(warpgroup).initialise(warpgroup_threads / 32);
      staging_free(warpgroup).initialise(1);
      sums_have_come(warpgroup).initialise(1);
      sums_are_read(warpgroup).initialise(warpgroup_threads);
    }
    turns().initialise();
    sums_taken() = 0;
    next_is_due().initialise(1);
    tiles().filled.initialise(key_tile_words);
    tiles().free.initialise(warpgroups * warpgroup_threads + ring_readers);
    publish_barriers();
  }
};

template <class Config>
constexpr int backward_threads = BackwardPlan<Config>::threads;
template <class Config>
constexpr int backward_shared_bytes = BackwardPlan<Config>::shared_bytes;

/// The loader: K, V, Q and dO, and what there is to do in each step.
template <class Config>
__device__ void load_operands(const BackwardArguments& arguments, const BackwardPlan<Config>& plan) {
  using Plan = BackwardPlan<Config>;
  int step = 0, odd = 0;
  const auto query_filled = [&] { return plan.query_filled()[index_in<Config::stages>(step)]; };
  const auto grad_output_filled = [&] { return plan.grad_output_filled()[index_in<Config::stages>(step)]; };
  for_all_key_tiles(plan.tiles(), [&](const KeyTile& tile, int number) {
    wait_for_turn(plan.key_free(), number, 1);
    const Barrier key_filled = plan.key_filled()[index_in<Plan::key_stages>(number)];
    key_filled.arrive_and_expect(Plan::KeysTile::bytes);
    plan.keys(number).load(arguments.key.map, key_filled.address, tile.key_head, tile.key);
    for_all_query_tiles<Config>(tile, [&](int head, int row, int left) {
      const bool begins = left == tile.steps;
      say_when_next_is_due(plan.next_is_due(), tile, left);
      wait_for_turn(plan.query_free(), step, 1);
      const int query_tile = row / Config::tile_queries;
      int flags = Step::exists;
      if (begins) flags |= Step::begins;
      if (left == 1) flags |= Step::ends;
      if (tile.steps == 1) flags |= Step::alone;
      if (tile.full.holds(query_tile)) flags |= Step::full;
      const GradQuery is = grad_query_of<Config>(tile, query_tile);
      if (is == GradQuery::ends_sums) {
        flags |= Step::taken + odd;
        odd ^= Step::odd;
      } else if (has_sums(is)) {
        flags |= Step::summed;
      }
      plan.step(step) = {flags + static_cast<int>(turn_of_sums(tile.grad_query)) * Step::turn, number, query_tile};
      query_filled().arrive_and_expect(Plan::QueryTile::bytes);
      plan.queries(step).load(arguments.query.map, query_filled().address, head, {tile.query.x + row, tile.query.y});
      wait_for_turn(plan.grad_output_free(), step, 1);
      grad_output_filled().arrive_and_expect(Plan::GradOutputTile::bytes);
      plan.grad_outputs(step).load(arguments.grad_output.map, grad_output_filled().address, head,
                                   {tile.query.x + row, tile.grad_output_y});
      // V has one buffer, which is free when the last step of the tile before has begun: later than those of Q and dO.
      if (Plan::computes_grad_scores && begins) {
        wait_for_turn(plan.value_free(), number, 1);
        const Barrier value_filled = plan.value_filled()[0];
        value_filled.arrive_and_expect(Plan::ValuesTile::bytes);
        plan.values().load(arguments.value.map, value_filled.address, tile.key_head, {tile.key.x, tile.value_y});
      }
      ++step;
    });
  });
  wait_for_turn(plan.query_free(), step, 1);
  plan.step(step) = {Step::alone, 0, 0};
  query_filled().arrive();
  wait_for_turn(plan.grad_output_free(), step, 1);
  grad_output_filled().arrive();
}

/// Before sums come to the staging places again. They were read long ago, since dQ has left from where they were; this
/// is for racecheck, which does not see that. By the sender.
template <class Config>
__device__ __forceinline__ void wait_for_read_sums(const BackwardPlan<Config>& plan) {
  const unsigned parity = plan.sums_taken() ^ 1;
#pragma unroll
  for (int warpgroup = 0; warpgroup < BackwardPlan<Config>::warpgroups; ++warpgroup) {
    plan.sums_are_read(warpgroup).wait(parity);
  }
  plan.sums_taken() = parity;
}

/// The sender: gradients from the staging places to where they go. What one holds is on its way while the other is
/// filled. dK and dV of a tile of keys come before the last dQ of it. Sums that a tile ends come to the staging places
/// as soon as they may.
template <class Config>
__device__ void send_gradients(const BackwardArguments& arguments, const BackwardPlan<Config>& plan) {
  using Plan = BackwardPlan<Config>;
  int step = 0, turns_over = 0;
  const auto end_turn = [&] {
    if (turns_over == step) return;
    plan.turns().end(turns_over);
    ++turns_over;
  };
  const auto send = [&](int times_staged, bool is_step, auto start) {
#pragma unroll
    for (int warpgroup = 0; warpgroup < Plan::warpgroups; ++warpgroup) {
      wait_for_turn(plan.staged(warpgroup), times_staged);
      if constexpr (Config::sums_begun) {
        if (warpgroup == 1 && is_step) {
          // All but what the first warpgroup has just sent has arrived.
          wait_for_stores<1>();
          end_turn();
        }
      }
      start(warpgroup, plan.staging(warpgroup));
      commit_stores();
      wait_for_stores_to_read();
      plan.staging_free(warpgroup)[0].arrive();
    }
  };
  for_all_key_tiles(plan.tiles(), [&](const KeyTile& tile, int number) {
    const auto send_key_gradient = [&](const TensorMap& map, int first_round, int rounds, int y) {
#pragma unroll 1
      for (int round = 0; round < rounds; ++round) {
        send(Plan::times_staged(step, number) + first_round + round, false, [&](int warpgroup, unsigned staging) {
          const int row = warpgroup * Plan::rows;
          if (tile.first_key + row >= tile.length_k) return;
          const int column = round * Plan::columns_of_round;
          typename Plan::RoundTile{staging}.store(map, column, tile.key_head, {tile.key.x + row, y});
        });
      }
    };
    for_all_query_tiles<Config>(tile, [&](int head, int row, int left) {
      if (left == 1) {
        send_key_gradient(arguments.grad_key.map, 0, Plan::key_rounds, tile.grad_key_y);
        send_key_gradient(arguments.grad_value.map, Plan::key_rounds, Plan::value_rounds, tile.grad_value_y);
      }
      if constexpr (!Config::computes_grad_query) return;
      const GradQuery is = grad_query_of<Config>(tile, row / Config::tile_queries);
      const auto row_of = [&](int warpgroup) { return row + (Plan::splits_queries ? warpgroup * Plan::rows : 0); };
      const auto sums = [&](int warpgroup) {
        return sums_at<Config>(arguments, head, Plan::splits_queries ? 0 : warpgroup,
                               tile.grad_query + row_of(warpgroup));
      };
      const auto bytes_of_sums = [&](int warpgroup) {
        const int rows = min(Plan::rows, tile.length_q - tile.first_query - row_of(warpgroup));
        return static_cast<unsigned>(max(rows, 0) * Plan::grad_query_row_bytes);
      };
      if constexpr (Config::sums_begun) {
        // Who has to pass this turn on may wait for the one before.
        if (!is_over(plan.turns().come, step)) {
          wait_for_stores();
          end_turn();
        }
        wait_for_turn(plan.turns().come, step);
      }
      if (is == GradQuery::ends_sums) {
        wait_for_read_sums(plan);
#pragma unroll 1
        for (int warpgroup = 0; warpgroup < Plan::warpgroups; ++warpgroup) {
          const Barrier have_come = plan.sums_have_come(warpgroup);
          const unsigned bytes = bytes_of_sums(warpgroup);
          have_come.arrive_and_expect(static_cast<int>(bytes));
          if (bytes != 0) load_bytes(plan.staging(warpgroup), sums(warpgroup), bytes, have_come.address);
        }
      }
      send(Plan::times_staged(step, number + static_cast<int>(left == 1)), true, [&](int warpgroup, unsigned staging) {
        const int column = Plan::splits_queries ? 0 : warpgroup * Plan::grad_query_columns;
        if (Plan::splits_queries && bytes_of_sums(warpgroup) == 0) return;  // no query has these rows
        if (is == GradQuery::added_to_sums) {
          add_to_global(sums(warpgroup), staging, bytes_of_sums(warpgroup));
        } else if (is == GradQuery::begins_sums) {
          store_bytes(sums(warpgroup), staging, bytes_of_sums(warpgroup));
        } else if (column < Config::head_dim) {
          const TensorMap& map = arguments.grad_query.map;
          const MapOrigin origin = {tile.query.x + row_of(warpgroup), tile.grad_query_y};
          if (is == GradQuery::added) {
            // What the tile of keys before has stored is there.
            if (left == tile.steps) wait_for_stores();
            add_box(map, staging, column, head, origin);
          } else {
            store_box(map, staging, column, head, origin);
          }
        }
      });
      ++step;
    });
  });
  wait_for_stores();
  if constexpr (Config::sums_begun) end_turn();
}

/// One warpgroup that computes.
template <class Config>
struct Differentiating {
  using Element = typename Config::Element;
  using Activation = typename Config::Activation;
  using Plan = BackwardPlan<Config>;
  static constexpr int part_queries = 64;  ///< whose S and dP a product has
  static constexpr int parts = Config::tile_queries / part_queries;
  static constexpr int part_steps = part_queries / 16;
  static constexpr int steps = (Config::head_dim + 15) / 16;      ///< of K Q^T
  static constexpr int steps_v = (Config::head_dim_v + 15) / 16;  ///< of V dO^T
  static constexpr int query_steps = parts * part_steps;          ///< of P^T dO and dS^T Q
  static constexpr int key_steps = Config::tile_keys / 16;        ///< of dS K
  static constexpr int columns = output_columns(Config::head_dim);
  static constexpr int columns_v = output_columns(Config::head_dim_v);
  using ScoreProduct = WarpgroupProduct<Element, part_queries>;
  using GradKeyProduct = WarpgroupProduct<Element, columns>;
  using GradValueProduct = WarpgroupProduct<Element, columns_v>;
  using GradQueryProduct = WarpgroupProduct<Element, Plan::grad_query_columns>;
  static constexpr int turn_barrier = 1;  ///< numbered; one for each warpgroup's turn to issue
  static constexpr int turn_threads = Plan::warpgroups * warpgroup_threads;

  const BackwardArguments& arguments;
  const Plan& plan;
  const int warpgroup;

  float scores[parts][part_queries / 2];  ///< S^T, then f'
  float grad_weights[part_queries / 2];
  unsigned weights[query_steps][4];
  unsigned grad_scores[query_steps][4];
  float grad_query[Plan::grad_query_columns / 2];
  float grad_key[columns / 2];
  float grad_value[columns_v / 2];

  __device__ __forceinline__ static bool leads() { return fresh_thread_index() == 0; }

  __device__ __forceinline__ void issue_scores(int number, int step, int part) {
    const OperandDescriptor keys = plan.keys(number).from_row(warpgroup * Plan::rows).by_columns();
    const OperandDescriptor queries = plan.queries(step).from_row(part * part_queries).by_columns();
    begin_products();
#pragma unroll
    for (int k = 0; k < steps; ++k) {
      ScoreProduct::template multiply_add<false>(scores[part], keys.at(Plan::KeysTile::column_step(k)),
                                                 queries.at(Plan::QueryTile::column_step(k)), k > 0);
    }
    commit_products();
  }

  __device__ __forceinline__ void issue_grad_weights(int step, int part) {
    const OperandDescriptor values = plan.values().from_row(warpgroup * Plan::rows).by_columns();
    const OperandDescriptor grad_outputs = plan.grad_outputs(step).from_row(part * part_queries).by_columns();
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

  /// dS K for this warpgroup's columns, or queries.
  __device__ __forceinline__ void issue_grad_query(int number, int step) {
    constexpr unsigned half =
        Plan::grad_query_columns * Element::bytes / Plan::KeysTile::row_bytes * (Plan::KeysTile::block_bytes / 16) +
        Plan::grad_query_columns * Element::bytes % Plan::KeysTile::row_bytes / 16;
    const OperandDescriptor grads = plan.grad_scores(step).by_rows();
    const OperandDescriptor keys = plan.keys(number).by_rows();
    const auto share = static_cast<unsigned>(warpgroup);
    const unsigned query = Plan::splits_queries ? share * (Plan::ScoresTile::block_bytes / 16) : 0;
    const unsigned column = Plan::splits_queries ? 0 : share * half;
    begin_products();
#pragma unroll
    for (int k = 0; k < key_steps; ++k) {
      GradQueryProduct::template multiply_add<true, true>(grad_query, grads.at(Plan::ScoresTile::row_step(k) + query),
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
    deal_and_copy([&] { deal_key_tiles(arguments, plan.tiles(), plan.next_is_due()); },
                  [&] { load_operands<Config>(arguments, plan); }, [&] { send_gradients<Config>(arguments, plan); },
                  [&] {
                    if constexpr (Config::sums_begun) keep_turns<Config>(arguments, plan.tiles(), plan.turns());
                  });
  } else {
    take_registers<Plan::computing_registers>();
    Differentiating<Config>{arguments, plan, warpgroup}.run();
  }
}

}  // namespace gdpa::hopper
