// Backward on Hopper's tensor cores (WGMMA), fed by its copy engine (TMA), for head dims above 128: dK and dV of 64
// keys take half of the registers of a warpgroup each, so that one warpgroup has dV and another dK.
//
// One CTA on each multiprocessor stays there and takes tiles of 64 keys, past which the queries stream in tiles of 64:
//
//     dealer     1 warp       takes tiles of keys and lays them into a ring (key_schedule.cuh)
//     loaders    3 warps      K and V of each tile; Q; dO; `stages` buffers of Q and of dO
//     value side 1 warpgroup  S^T = K Q^T, P = f(scale * S), which stays in registers, and f'(scale * S), which goes to
//                             the other side through shared memory; dV += P^T dO
//     key side   1 warpgroup  dP^T = V dO^T, dS = dP * f', which stays in registers, and goes to shared memory too;
//                             dK += dS^T Q
//     both                    dQ = dS K, half of the columns each, from registers to the sums (grad_query_sums.cuh)
//
// Shared memory has no room for dQ on its way. The memory takes its additions more slowly than the tensor cores take
// all products, and a warpgroup that adds waits for it: so products are issued before additions, to run beside them. dQ
// of a side comes in two chunks of columns, which have the same registers: for a tile of queries n
//
//     value side  S (n + 1) | add the last chunk (n - 1) | first chunk of dQ (n), dV (n) | wait S, first chunk | add it
//                 last chunk (n) | wait dV | P and f' (n + 1) | wait last chunk
//     key side    dS (n) | dK (n) | add the last chunk (n - 1); in between wait dK, to free Q | first chunk of dQ (n),
//                 dP (n + 1) | wait first chunk | add it | last chunk (n) | wait dP, last chunk
//
// Config: struct as of backward.cuh, with
//     int head_dim, head_dim_v;       multiples of 8, at most 256
//     int tile_queries, tile_keys;    64, 64
//     bool keys_shared, sums_begun, ordered;  false
//
// Work that only an unwanted gradient needs is left out (computes_grad_query, computes_grad_key, computes_grad_value of
// Config). Without dQ, dS is not written to shared memory, and its barrier only says that f' has been read. For dV
// alone the key side has no work, and V is not loaded.
//
// Launch: as backward.cuh, with wide_backward_threads<Config> and wide_backward_shared_bytes<Config>.
#pragma once

#include "hopper/kept_queries.cuh"
#include "hopper/key_schedule.cuh"
#include "hopper/tile.cuh"
#include "hopper/warpgroup.cuh"
#include "hopper/where_needed.cuh"

namespace gdpa::hopper {

enum class Side : int { value, key };

/// Who is who, and what lies where in shared memory.
template <class Config>
struct WideBackwardPlan {
  static constexpr int sides = 2;
  static constexpr int loaders = 3;
  static constexpr int threads = (sides + 1) * warpgroup_threads;
  static constexpr int rows = 64;  ///< of every tile
  static constexpr bool computes_grad_scores = Config::computes_grad_query || Config::computes_grad_key;
  static constexpr int working_sides = computes_grad_scores ? 2 : 1;
  static_assert(Config::tile_keys == rows && Config::tile_queries == rows, "as many as a product has");
  static_assert(!Config::keys_shared && !Config::ordered, "the portable kernels have these");
  static_assert(!Config::sums_begun, "sums are cleared before, and rounded behind");
  // 65,536 registers in all, in multiples of 8 a thread.
  static constexpr int computing_registers = 240;
  static constexpr int other_registers = 24;

  static constexpr int score_stages = 2;  ///< the value side multiplies dS later

  using KeysTile = SwizzledTile<rows, Config::head_dim>;
  using ValuesTile = SwizzledTile<rows, Config::head_dim_v>;
  using ScoresTile = SwizzledTile<rows, rows>;  ///< rows are keys
  static constexpr int derivative_bytes = rows * rows * static_cast<int>(sizeof(float));

  static constexpr int values_at = KeysTile::bytes;
  static constexpr int queries_at = values_at + ValuesTile::bytes;
  static constexpr int grad_outputs_at = queries_at + Config::stages * KeysTile::bytes;
  static constexpr int scores_at = grad_outputs_at + Config::stages * ValuesTile::bytes;
  static constexpr int derivatives_at = scores_at + score_stages * ScoresTile::bytes;
  static constexpr int ring_at = derivatives_at + derivative_bytes;
  static constexpr int due_barrier_at = ring_at + KeyRing::bytes;
  static constexpr int barriers_at = due_barrier_at + Barrier::bytes;
  static constexpr int stage_barriers = Barriers<Config::stages>::bytes;
  static constexpr int key_barriers_at = barriers_at + 4 * stage_barriers;
  static constexpr int score_barriers_at = key_barriers_at + 4 * Barrier::bytes;
  static constexpr int shared_bytes = score_barriers_at + 2 * Barriers<score_stages>::bytes;
  static_assert(shared_bytes <= 227 * 1024, "more than a CTA can have");

  /// A numbered barrier of both sides: f' of a tile of queries is there.
  static constexpr int derivatives_written = 1;
  static constexpr int computing_threads = sides * warpgroup_threads;

  unsigned char* memory;

  __device__ unsigned at(int offset) const { return shared_address(memory) + static_cast<unsigned>(offset); }
  __device__ KeysTile keys() const { return {at(0)}; }
  __device__ ValuesTile values() const { return {at(values_at)}; }
  __device__ KeysTile queries(int step) const { return KeysTile{at(queries_at)}.stage(index_in<Config::stages>(step)); }
  __device__ ValuesTile grad_outputs(int step) const {
    return ValuesTile{at(grad_outputs_at)}.stage(index_in<Config::stages>(step));
  }
  __device__ ScoresTile grad_scores(int step) const {
    return ScoresTile{at(scores_at)}.stage(index_in<score_stages>(step));
  }
  /// Four of f', of a thread of either side: the one of this index in the other has the same elements.
  __device__ unsigned derivatives(int piece) const {
    return at(derivatives_at) + (static_cast<unsigned>(piece) * warpgroup_threads + fresh_thread_index()) * 16;
  }

  __device__ KeyRing tiles() const { return KeyRing::at(memory + ring_at); }
  __device__ Barrier next_is_due() const { return {at(due_barrier_at)}; }
  __device__ Barriers<Config::stages> query_filled() const { return {at(barriers_at)}; }
  __device__ Barriers<Config::stages> query_free() const { return {at(barriers_at + stage_barriers)}; }
  __device__ Barriers<Config::stages> grad_output_filled() const { return {at(barriers_at + 2 * stage_barriers)}; }
  __device__ Barriers<Config::stages> grad_output_free() const { return {at(barriers_at + 3 * stage_barriers)}; }
  __device__ Barriers<1> key_filled() const { return {at(key_barriers_at)}; }
  __device__ Barriers<1> key_free() const { return {at(key_barriers_at + Barrier::bytes)}; }
  __device__ Barriers<1> value_filled() const { return {at(key_barriers_at + 2 * Barrier::bytes)}; }
  __device__ Barriers<1> value_free() const { return {at(key_barriers_at + 3 * Barrier::bytes)}; }
  /// Behind it f' has been read too: each thread arrives, since racecheck sees no other order between those.
  __device__ Barriers<score_stages> grad_scores_written() const { return {at(score_barriers_at)}; }
  __device__ Barriers<score_stages> grad_scores_free() const {
    return {at(score_barriers_at + Barriers<score_stages>::bytes)};
  }

  __device__ void initialise() const {
    query_filled().initialise(1);
    query_free().initialise(working_sides);
    grad_output_filled().initialise(1);
    grad_output_free().initialise(working_sides);
    next_is_due().initialise(2);  // loaders
    key_filled().initialise(1);
    key_free().initialise(working_sides);
    value_filled().initialise(1);
    value_free().initialise(1);
    grad_scores_written().initialise(warpgroup_threads);
    grad_scores_free().initialise(sides);
    tiles().filled.initialise(key_tile_words);
    tiles().free.initialise(computing_threads + loaders);
    publish_barriers();
  }
};

template <class Config>
constexpr int wide_backward_threads = WideBackwardPlan<Config>::threads;
template <class Config>
constexpr int wide_backward_shared_bytes = WideBackwardPlan<Config>::shared_bytes;

/// A loader: K and V of each tile, V first, which is free earlier.
template <class Config>
__device__ void load_keys_and_values(const BackwardArguments& arguments, const WideBackwardPlan<Config>& plan) {
  using Plan = WideBackwardPlan<Config>;
  for_all_key_tiles(plan.tiles(), [&](const KeyTile& tile, int number) {
    const Barrier key_filled = plan.key_filled()[0], value_filled = plan.value_filled()[0];
    if constexpr (Plan::computes_grad_scores) {
      wait_for_turn(plan.value_free(), number, 1);
      value_filled.arrive_and_expect(Plan::ValuesTile::bytes);
      plan.values().load(arguments.value.map, value_filled.address, tile.key_head, {tile.key.x, tile.value_y});
    }
    wait_for_turn(plan.key_free(), number, 1);
    key_filled.arrive_and_expect(Plan::KeysTile::bytes);
    plan.keys().load(arguments.key.map, key_filled.address, tile.key_head, tile.key);
  });
}

/// Of Q and of dO. `tile_of_step` gives the buffer, and `y_of` where the sequence of a tile of keys begins.
template <class Config, class TileOfStep, class YOf>
__device__ void load_query_tiles(const WideBackwardPlan<Config>& plan, const TensorMap& map,
                                 const Barriers<Config::stages>& filled, const Barriers<Config::stages>& free,
                                 TileOfStep tile_of_step, YOf y_of) {
  int step = 0;
  for_all_key_tiles(plan.tiles(), [&](const KeyTile& tile, int) {
    for_all_query_tiles<Config>(tile, [&](int head, int row, int left) {
      say_when_next_is_due(plan.next_is_due(), tile, left);
      const auto buffer = tile_of_step(step);
      const Barrier is_filled = filled[index_in<Config::stages>(step)];
      wait_for_turn(free, step, 1);
      is_filled.arrive_and_expect(buffer.bytes);
      buffer.load(map, is_filled.address, head, {tile.query.x + row, y_of(tile)});
      ++step;
    });
  });
}

/// A loader: Q.
template <class Config>
__device__ void load_queries(const BackwardArguments& arguments, const WideBackwardPlan<Config>& plan) {
  load_query_tiles<Config>(
      plan, arguments.query.map, plan.query_filled(), plan.query_free(), [&](int step) { return plan.queries(step); },
      [](const KeyTile& tile) { return tile.query.y; });
}

/// A loader: dO.
template <class Config>
__device__ void load_grad_outputs(const BackwardArguments& arguments, const WideBackwardPlan<Config>& plan) {
  load_query_tiles<Config>(
      plan, arguments.grad_output.map, plan.grad_output_filled(), plan.grad_output_free(),
      [&](int step) { return plan.grad_outputs(step); }, [](const KeyTile& tile) { return tile.grad_output_y; });
}

/// sums = A B^T over the first columns of both.
template <class Element, int columns, class Tile>
__device__ __forceinline__ void issue_scores(float (&sums)[32], const Tile& a_tile, const Tile& b_tile) {
  const OperandDescriptor a = a_tile.by_columns(), b = b_tile.by_columns();
  begin_products();
#pragma unroll
  for (int k = 0; k < (columns + 15) / 16; ++k) {
    WarpgroupProduct<Element, 64>::template multiply_add<false>(sums, a.at(Tile::column_step(k)),
                                                                b.at(Tile::column_step(k)), k > 0);
  }
  commit_products();
}

/// sums += A B, whose rows are 64 queries.
template <class Element, class Tile, int half_columns>
__device__ __forceinline__ void issue_gradient(float (&sums)[half_columns], const unsigned (&a)[4][4],
                                               const Tile& b_tile) {
  const OperandDescriptor b = b_tile.by_rows();
  begin_products();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    WarpgroupProduct<Element, half_columns * 2>::template multiply_add<true>(sums, a[k], b.at(Tile::row_step(k)), true);
  }
  commit_products();
}

template <int count>
__device__ __forceinline__ void clear(float (&sums)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) sums[i] = 0.0f;
}

/// Which tile of queries of a tile of keys.
struct QueryPosition {
  int head;
  int row;  ///< its first, from the first that meets the tile of keys

  template <class Config>
  __device__ __forceinline__ void advance(const KeyTile& tile) {
    row += Config::tile_queries;
    if (row == tile.query_tiles * Config::tile_queries) {
      row = 0;
      ++head;
    }
  }
  /// Whether no score needs a test.
  template <class Config>
  __device__ __forceinline__ bool is_full(const KeyTile& tile) const {
    const int index = row / Config::tile_queries;
    return uniform(static_cast<int>(tile.full.holds(index))) != 0;
  }
  __device__ __forceinline__ KeptQueries kept(const BackwardArguments& arguments, const KeyTile& tile) const {
    return {arguments.common.params.mask, tile, tile.first_key, tile.first_query + row};
  }
};

/// dQ of one side: of the blocks of 64 columns that K has the first or the last ones, and half of the middle one; in
/// one chunk or two.
template <class Config, Side side>
struct GradQueryOfSide {
  using Element = typename Config::Element;
  using Plan = WideBackwardPlan<Config>;
  static constexpr int blocks = Plan::KeysTile::blocks;
  static constexpr int last_chunk = (blocks + 1) / 2 - 1;
  static constexpr int columns(int chunk) { return chunk < blocks / 2 ? 64 : 32; }
  static constexpr int first_column(int chunk) {
    const int index = static_cast<int>(side);
    return chunk < blocks / 2 ? (index * (blocks - blocks / 2) + chunk) * 64 : blocks / 2 * 64 + index * 32;
  }

  float first[columns(0) / 2];
  float last[columns(last_chunk) / 2];  ///< where there are two

  template <int chunk>
  __device__ __forceinline__ auto& sums() {
    if constexpr (chunk == 0) {
      return first;
    } else {
      return last;
    }
  }

  /// Before the first step, so that other registers may be used until then.
  __device__ __forceinline__ void clear() { hopper::clear(sums<last_chunk>()); }

  template <int chunk>
  __device__ __forceinline__ void issue(const Plan& plan, int step) {
    const OperandDescriptor grads = plan.grad_scores(step).by_rows(), keys = plan.keys().by_rows();
    constexpr unsigned column = Plan::KeysTile::column_step(first_column(chunk) / 16);
    begin_products();
#pragma unroll
    for (int k = 0; k < Plan::rows / 16; ++k) {
      WarpgroupProduct<Element, columns(chunk)>::template multiply_add<true, true>(
          sums<chunk>(), grads.at(Plan::ScoresTile::row_step(k)), keys.at(Plan::KeysTile::row_step(k) + column), k > 0);
    }
    commit_products();
  }

  /// To the sums of a tile of queries: one of the two rows that a thread has, or both.
  template <int chunk, int half>
  __device__ __forceinline__ void add_row(const BackwardArguments& arguments, const KeyTile& tile,
                                          const QueryPosition& position) {
    const bool is_number = arguments.common.params.out_scale.kind == OutputScale::Kind::number;
    const float factor = is_number ? 1.0f : tile.out_scale;  // numbers are left to the kernel that rounds
    const unsigned thread = fresh_thread_index(), lane = thread % 32;
    const int row = position.row + half * 8 + static_cast<int>(thread / 32 * 16 + lane / 4);
    if (tile.first_query + row >= tile.length_q) return;
    float* const to =
        sums_at<Config>(arguments, position.head, first_column(chunk) / column_group, tile.grad_query + row) +
        lane % 4 * 4;
    const int64_t block_elements = arguments.common.packed_rows_q * column_group;
#pragma unroll
    for (int j = 0; j < columns(chunk) / column_group; ++j) {
      if (first_column(chunk) + j * column_group >= Config::head_dim) break;
      const float* const group = sums<chunk>() + j * 8 + half * 2;
      const float four[4] = {group[0] * factor, group[1] * factor, group[4] * factor, group[5] * factor};
      reduce_add(to + j * block_elements, four);
    }
  }
  template <int chunk>
  __device__ __forceinline__ void add(const BackwardArguments& arguments, const KeyTile& tile,
                                      const QueryPosition& position) {
    add_row<chunk, 0>(arguments, tile, position);
    add_row<chunk, 1>(arguments, tile, position);
  }
};

/// What both sides have, for one tile of keys: registers hold nothing from one to the next.
template <class Config, Side side>
struct WideSide {
  using Element = typename Config::Element;
  using Plan = WideBackwardPlan<Config>;
  using GradQuery = GradQueryOfSide<Config, side>;
  static constexpr bool has_two_chunks = Config::computes_grad_query && GradQuery::last_chunk > 0;

  const BackwardArguments& arguments;
  const Plan& plan;
  GradQuery grad_query;
  QueryPosition position;  ///< of the tile of queries in this step
  QueryPosition before;    ///< and in the step before

  __device__ __forceinline__ WideSide(const BackwardArguments& arguments_, const Plan& plan_, const KeyTile& tile)
      : arguments(arguments_), plan(plan_), position{uniform(tile.first_head), 0}, before(position) {}

  __device__ __forceinline__ void advance(const KeyTile& tile) {
    before = position;
    position.template advance<Config>(tile);
  }

  __device__ __forceinline__ static bool leads() { return fresh_thread_index() == 0; }
  template <int buffers>
  __device__ __forceinline__ static void release(const Barriers<buffers>& free, int turn) {
    if (leads()) free[index_in<buffers>(turn)].arrive();
  }

  template <int columns, int half_columns>
  __device__ __forceinline__ void store(const float (&sums)[half_columns], float factor, const Operand& gradient,
                                        int64_t offset, const KeyTile& tile) const {
    const int rows = tile.length_k - tile.first_key;
    look_for_infinity<Config>(arguments, rows, sums);
    KeyGradients<Config>::template store<columns>(sums, factor * tile.out_scale,
                                                  static_cast<typename Element::Storage*>(gradient.data) + offset,
                                                  gradient.row_stride, rows);
  }
};

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

template <class Config>
__device__ void wide_backward(const BackwardArguments& arguments) {
  using Plan = WideBackwardPlan<Config>;
  if (Config::pass == BackwardPass::again && *arguments.found == 0) return;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const Plan plan{shared_memory};
  if (threadIdx.x == 0) plan.initialise();
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (warpgroup == Plan::sides) {
    give_registers_back<Plan::other_registers>();
    deal_and_copy([&] { deal_key_tiles(arguments, plan.tiles(), plan.next_is_due()); },
                  [&] { load_keys_and_values<Config>(arguments, plan); },
                  [&] { load_queries<Config>(arguments, plan); }, [&] { load_grad_outputs<Config>(arguments, plan); });
  } else {
    take_registers<Plan::computing_registers>();
    if (warpgroup == 0) {
      compute_side<ValueSide<Config>>(arguments, plan);
    } else {
      compute_side<KeySide<Config>>(arguments, plan);
    }
  }
}

}  // namespace gdpa::hopper
