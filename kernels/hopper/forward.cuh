// Forward on Hopper's tensor cores (WGMMA), fed by its copy engine (TMA): O = out_scale * f(scale * Q K^T) V.
//
// One CTA on each multiprocessor stays there and takes tiles of queries. Three kinds of warps work side by side:
//
//     dealer    1 warp          finds tiles and lays them into a ring (schedule.cuh)
//     loaders   3 warps         Q of each tile; K, and V, of its key tiles into `stages` buffers each
//     computing 2 warpgroups    64 queries each: S = Q K^T, P = f(scale * S), O += P V; one, where there are no more
//
// A warpgroup issues S of the next key tile, which may be the next query tile's first, before P V of this one, and
// computes P of the next while the tensor cores are at P V of this one: nothing is drained between tiles. The two
// warpgroups take turns in issuing, so that one's products run under the other's function. P is an operand in
// registers. There is no maximum and no sum, so nothing else is carried from one key tile to the next.
//
// Q is an operand in registers too where there is room for it; O then leaves through its place in shared memory. Where
// there is none, Q stays in shared memory until the last S of its tile, and O leaves from the registers.
//
// Config: struct with
//     using Element, Activation;      BFloat16 or Float16; what forward takes of src/activation/function.h
//     int head_dim, head_dim_v;       multiples of 8, at most 256
//     int tile_queries, tile_keys;    128 or 64; a multiple of 16 for which wgmma.cuh has a product
//     int stages, query_stages;       buffers of K, and of V; of Q
//     bool query_in_registers;
//     bool scales_query;              the kernel multiplies Q by scale, instead of each score; Q must be in registers
//
// Launch: grid any number of CTAs, best one for each multiprocessor; block forward_threads<Config>; dynamic shared
//         memory forward_shared_bytes<Config>; no workspace.
#pragma once

#include "hopper/rows.cuh"
#include "hopper/schedule.cuh"
#include "hopper/tile.cuh"
#include "hopper/warpgroup.cuh"

namespace gdpa::hopper {

/// Bounds that only infinite scores need cost an instruction for each: a first pass over the CTA's tiles leaves them
/// out, and where O has NaN, which may come of that, there is a second one with them. Each is code of its own: a branch
/// at every key tile would cost as much as the bounds.
enum class Scores { taken_for_finite, bounded };
enum class Pass : int { first, first_that_found_nan, second };

/// Who is who, and what lies where in shared memory.
template <class Config>
struct ForwardPlan {
  static constexpr int rows = warpgroup_rows;
  static constexpr int warpgroups = Config::tile_queries / rows;  ///< that compute
  static constexpr int loaders = 3;                               ///< warps
  static constexpr int threads = (warpgroups + 1) * warpgroup_threads;
  static_assert(warpgroups == 1 || warpgroups == 2, "what turns are for");
  // 65,536 registers in all, in multiples of 8 a thread.
  static constexpr int computing_registers = warpgroups == 1 ? 240 : 224;
  static constexpr int other_registers = 56;

  // Q and O are a warpgroup's own.
  using QueryTile = SwizzledTile<rows, Config::head_dim>;
  using KeyTile = SwizzledTile<Config::tile_keys, Config::head_dim>;
  using ValueTile = SwizzledTile<Config::tile_keys, Config::head_dim_v>;
  using OutputTile = SwizzledTile<rows, Config::head_dim_v>;

  static constexpr bool takes_output = Config::query_in_registers && OutputTile::bytes > QueryTile::bytes;
  static constexpr int query_bytes = takes_output ? OutputTile::bytes : QueryTile::bytes;
  static constexpr int keys_at = Config::query_stages * warpgroups * query_bytes;
  static constexpr int values_at = keys_at + Config::stages * KeyTile::bytes;
  static constexpr int barriers_at = values_at + Config::stages * ValueTile::bytes;
  static constexpr int stage_barriers = Barriers<Config::stages>::bytes;
  static constexpr int query_barriers = Barriers<Config::query_stages>::bytes;
  static constexpr int queries_at = barriers_at + 4 * stage_barriers;
  static constexpr int ring_at = queries_at + 2 * warpgroups * query_barriers;
  static constexpr int meeting_at = ring_at + TileRing::bytes;
  static constexpr int pass_at = meeting_at + Barrier::bytes;
  static constexpr int span_at = pass_at + static_cast<int>(sizeof(Pass));
  static constexpr int shared_bytes = span_at + static_cast<int>(sizeof(Span));
  static_assert(shared_bytes <= 227 * 1024, "more than a CTA can have");

  unsigned char* memory;

  __device__ unsigned at(int offset) const { return shared_address(memory) + static_cast<unsigned>(offset); }
  /// Q of a tile, by its number.
  __device__ QueryTile query(int number, int warpgroup) const {
    return {at((index_in<Config::query_stages>(number) * warpgroups + warpgroup) * query_bytes)};
  }
  /// O of a tile goes where Q of the next one was, which is in registers by then.
  __device__ OutputTile output(int number, int warpgroup) const { return {query(number + 1, warpgroup).base}; }
  __device__ KeyTile keys() const { return {at(keys_at)}; }
  __device__ ValueTile values() const { return {at(values_at)}; }

  __device__ Barriers<Config::stages> key_filled() const { return {at(barriers_at)}; }
  __device__ Barriers<Config::stages> key_free() const { return {at(barriers_at + stage_barriers)}; }
  __device__ Barriers<Config::stages> value_filled() const { return {at(barriers_at + 2 * stage_barriers)}; }
  __device__ Barriers<Config::stages> value_free() const { return {at(barriers_at + 3 * stage_barriers)}; }
  __device__ Barriers<Config::query_stages> query_filled(int warpgroup) const {
    return {at(queries_at + warpgroup * query_barriers)};
  }
  __device__ Barriers<Config::query_stages> query_free(int warpgroup) const {
    return {at(queries_at + (warpgroups + warpgroup) * query_barriers)};
  }
  __device__ TileRing tiles() const { return TileRing::at(memory + ring_at); }

  /// The CTA's share of the tiles, and what it takes to find it, where tiles are only dealt later.
  __device__ Span& span() const { return *reinterpret_cast<Span*>(memory + span_at); }
  __device__ Sum* sums_of_warps() const {
    static_assert(threads / 32 * sizeof(Sum) <= TileRing::barriers_at, "sums have the room of the tiles");
    return reinterpret_cast<Sum*>(memory + ring_at);
  }

  /// Of all warps, between the passes.
  __device__ Barrier meeting() const { return {at(meeting_at)}; }
  __device__ volatile Pass& pass() const { return *reinterpret_cast<Pass*>(memory + pass_at); }

  /// Calls visit(barriers, arrivals of a phase) for all of them.
  template <class Visit>
  __device__ void for_all_barriers(Visit visit) const {
    visit(key_filled(), 1);
    visit(key_free(), warpgroups);
    visit(value_filled(), 1);
    visit(value_free(), warpgroups);
    for (int warpgroup = 0; warpgroup < warpgroups; ++warpgroup) {
      visit(query_filled(warpgroup), 1);
      visit(query_free(warpgroup), 1);
    }
    visit(tiles().filled, 1);
    visit(tiles().free, warpgroups + loaders);
  }

  __device__ void initialise() const {
    for_all_barriers([](const auto& barriers, int arrivals) { barriers.initialise(arrivals); });
    publish_barriers();
  }
  __device__ void initialise_meeting() const {
    meeting().initialise(threads / 32);
    pass() = Pass::first;
  }

  /// Waits for all warps, for the time-th time. (One numbered barrier at two places of the code would do, but synccheck
  /// takes it for a divergence.)
  __device__ void meet(unsigned time) const {
    __syncwarp();
    if (lane_index() == 0) meeting().arrive();
    meeting().wait(time & 1u);
  }

  /// Whether the first pass over the CTA's tiles found NaN, so that scores are bounded in a second one, for which the
  /// barriers are as at the beginning. By all threads.
  __device__ bool begins_again() const {
    if (pass() == Pass::second) return false;
    meet(0);
    if (pass() == Pass::first) return false;
    meet(1);
    if (threadIdx.x == 0) {
      for_all_barriers([](const auto& barriers, int) { barriers.invalidate(); });
      initialise();
      pass() = Pass::second;
    }
    meet(2);
    return true;
  }
};

template <class Config>
constexpr int forward_threads = ForwardPlan<Config>::threads;
template <class Config>
constexpr int forward_shared_bytes = ForwardPlan<Config>::shared_bytes;

/// Calls start(tile, number) for every tile of queries, and load(tile, row, turn) for every tile of keys that is to be
/// loaded; by one thread, which is one of the ring's readers.
template <class Config, class Start, class Load>
__device__ void for_all_loads(const TileRing& ring, Start start, Load load) {
  int turn = 0;
  for (int number = 0;; ++number) {
    const Tile& tile = ring.wait(number);
    if (tile.key_tiles == 0) return;
    start(tile, number);
    const int count = tile.loads ? tile.key_tiles : 0;
    for (int i = 0; i < count; ++i, ++turn) load(tile, i * Config::tile_keys, turn);
    ring.release(number);
  }
}

/// The first loader: Q, whose buffers become free in the order in which the warpgroups take their turns.
template <class Config>
__device__ void load_queries(const ForwardArguments& arguments, const ForwardPlan<Config>& plan) {
  using Plan = ForwardPlan<Config>;
  const auto load_query = [&](const Tile& tile, int number) {
    for (int warpgroup = 0; warpgroup < Plan::warpgroups; ++warpgroup) {
      wait_for_turn(plan.query_free(warpgroup), number, 1);
      const Barrier filled = plan.query_filled(warpgroup)[index_in<Config::query_stages>(number)];
      const int row = warpgroup * Plan::rows;
      if (tile.first_query + row < tile.length_q) {
        filled.arrive_and_expect(Plan::QueryTile::bytes);
        plan.query(number, warpgroup)
            .load(arguments.query.map, filled.address, tile.head, {tile.query.x + row, tile.query.y});
      } else {
        filled.arrive();  // whatever lies there; nobody stores these rows
      }
    }
  };
  for_all_loads<Config>(plan.tiles(), load_query, [](const Tile&, int, int) {});
}

/// The second loader: K.
template <class Config>
__device__ void load_keys(const ForwardArguments& arguments, const ForwardPlan<Config>& plan) {
  using Plan = ForwardPlan<Config>;
  const auto nothing = [](const Tile&, int) {};
  for_all_loads<Config>(plan.tiles(), nothing, [&](const Tile& tile, int row, int turn) {
    const int stage = index_in<Config::stages>(turn);
    wait_for_turn(plan.key_free(), turn, 1);
    const Barrier filled = plan.key_filled()[stage];
    filled.arrive_and_expect(Plan::KeyTile::bytes);
    plan.keys().stage(stage).load(arguments.key.map, filled.address, tile.key_head, {tile.key.x + row, tile.key.y});
  });
}

/// The third loader: V, whose buffers become free at another time than those of K.
template <class Config>
__device__ void load_values(const ForwardArguments& arguments, const ForwardPlan<Config>& plan) {
  using Plan = ForwardPlan<Config>;
  const auto nothing = [](const Tile&, int) {};
  for_all_loads<Config>(plan.tiles(), nothing, [&](const Tile& tile, int row, int turn) {
    const int stage = index_in<Config::stages>(turn);
    wait_for_turn(plan.value_free(), turn, 1);
    const Barrier filled = plan.value_filled()[stage];
    filled.arrive_and_expect(Plan::ValueTile::bytes);
    plan.values().stage(stage).load(arguments.value.map, filled.address, tile.key_head,
                                    {tile.key.x + row, tile.value_y});
  });
}

/// One warpgroup that computes.
template <class Config, Scores scores_are>
struct Computing {
  using Element = typename Config::Element;
  using Activation = typename Config::Activation;
  using Plan = ForwardPlan<Config>;
  static constexpr int steps = (Config::head_dim + 15) / 16;  ///< of Q K^T
  static constexpr int columns_v = output_columns(Config::head_dim_v);
  static constexpr int key_steps = Config::tile_keys / 16;  ///< of P V
  using ScoreProduct = WarpgroupProduct<Element, Config::tile_keys>;
  using OutputProduct = WarpgroupProduct<Element, columns_v>;
  // Numbered barriers: one for each warpgroup's own threads, one for each warpgroup's turn to issue.
  static constexpr int own_barrier = 1, turn_barrier = own_barrier + Plan::warpgroups;

  const ForwardArguments& arguments;
  const Plan& plan;
  const int warpgroup;

  unsigned query[steps][4];
  float scores[Config::tile_keys / 2];
  unsigned weights[key_steps][4];
  float output[columns_v / 2];

  __device__ __forceinline__ static bool leads() { return fresh_thread_index() == 0; }

  // The turn to issue products, where there are two warpgroups.
  __device__ __forceinline__ void take_turn() const {
    if (Plan::warpgroups > 1) named_wait(turn_barrier + warpgroup, Plan::warpgroups * warpgroup_threads);
  }
  __device__ __forceinline__ void give_turn() const {
    if (Plan::warpgroups > 1) named_arrive(turn_barrier + (warpgroup ^ 1), Plan::warpgroups * warpgroup_threads);
  }

  __device__ __forceinline__ void load_query(int number) {
    wait_for_turn(plan.query_filled(warpgroup), number);
    if (!Config::query_in_registers) return;
    const auto rows = plan.query(number, warpgroup);
    const unsigned thread = fresh_thread_index(), lane = thread % 32;
    const int row = static_cast<int>(thread / 32 * 16 + lane % 16);
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      load_matrices(query[step], rows.chunk(row, step * 2 + static_cast<int>(lane / 16)));
    }
    if constexpr (Config::scales_query && Activation::scales_scores) scale_query();
  }

  /// What x of the function is of Q K^T.
  __device__ __forceinline__ float score_scale() const { return arguments.scale * Activation::score_factor; }

  __device__ __forceinline__ void scale_query() {
    const SplitFactor<Element> factor(score_scale());
#pragma unroll
    for (int step = 0; step < steps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) query[step][i] = factor.times(query[step][i]);
    }
  }

  /// Gives the place of Q of a tile back; where it takes O, once O of the tile before has left it.
  __device__ __forceinline__ void release_query(int number) {
    if (!leads()) return;
    if (Config::query_in_registers) wait_for_stores_to_read();
    plan.query_free(warpgroup)[index_in<Config::query_stages>(number)].arrive();
  }

  __device__ __forceinline__ void issue_scores(int number, int stage) {
    const OperandDescriptor queries = plan.query(number, warpgroup).by_columns();
    const OperandDescriptor keys = plan.keys().stage(stage).by_columns();
    begin_products();
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      const auto key_columns = keys.at(Plan::KeyTile::column_step(step));
      if constexpr (Config::query_in_registers) {
        ScoreProduct::template multiply_add<false>(scores, query[step], key_columns, step > 0);
      } else {
        ScoreProduct::template multiply_add<false>(scores, queries.at(Plan::QueryTile::column_step(step)), key_columns,
                                                   step > 0);
      }
    }
    commit_products();
  }

  __device__ __forceinline__ void issue_output(int stage, bool add) {
    const OperandDescriptor values = plan.values().stage(stage).by_rows();
    begin_products();
#pragma unroll
    for (int step = 0; step < key_steps; ++step) {
      OutputProduct::template multiply_add<true>(output, weights[step], values.at(Plan::ValueTile::row_step(step)),
                                                 add || step > 0);
    }
    commit_products();
  }

  /// Scores to weights, still in fp32 and in the registers of the scores.
  __device__ __forceinline__ void apply_function() {
    constexpr bool scales = Activation::scales_scores && !Config::scales_query;
    const float scale = score_scale();
#pragma unroll
    for (int i = 0; i < Config::tile_keys / 2; ++i) {
      const float x = scales ? scores[i] * scale : scores[i];
      scores[i] = scores_are == Scores::bounded ? Activation::value(x) : Activation::value_of_finite(x);
    }
  }

  /// A weight that is NaN makes a whole row of O NaN, so that one column tells.
  __device__ __forceinline__ void look_for_nan(const Tile& tile) {
    if (scores_are == Scores::bounded || !Activation::bounds_scores) return;
    const unsigned thread = fresh_thread_index();
    const int row = warpgroup * Plan::rows + static_cast<int>(thread / 32 * 16 + thread % 32 / 4);
    const int rows = tile.length_q - tile.first_query;
    const bool found = (row < rows && output[0] != output[0]) || (row + 8 < rows && output[2] != output[2]);
    if (found) plan.pass() = Pass::first_that_found_nan;
  }

  __device__ __forceinline__ static bool is_full(const Tile& tile, int key_tile) {
    const int begin = tile.full_begin, end = tile.full_end;
    return uniform(static_cast<int>(key_tile >= begin && key_tile < end)) != 0;
  }

  /// Weights that do not count become 0, whatever they are: f(0) may be infinite.
  __device__ __forceinline__ void apply_mask(const Tile& tile, int key_tile) {
    const MaskOfSequence mask{arguments.common.params.mask, tile.length_q, tile.length_k};
    const int first_key = tile.first_key + key_tile * Config::tile_keys;
    const unsigned thread = fresh_thread_index(), lane = thread % 32;
    const int row = tile.first_query + warpgroup * Plan::rows + static_cast<int>(thread / 32 * 16 + lane / 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Kept kept = mask.row(row + half * 8);
      kept.begin -= first_key + static_cast<int>(lane % 4 * 2);
#pragma unroll
      for (int j = 0; j < Config::tile_keys / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (!kept.holds(j * 8 + i)) scores[j * 4 + half * 2 + i] = 0.0f;
        }
      }
    }
  }

  __device__ __forceinline__ void pack_weights() {
#pragma unroll
    for (int step = 0; step < key_steps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[step][i] =
            Element::template pack<Activation::clamps_at_zero>(scores[step * 8 + i * 2], scores[step * 8 + i * 2 + 1]);
      }
    }
  }

  /// What O is multiplied by.
  __device__ __forceinline__ float output_factor(const Tile& tile) const {
    return Activation::value_factor * arguments.common.output_factor * tile.out_scale;
  }

  /// O through shared memory into the rows of the sequence; rows beyond it are cut off by the map.
  __device__ __forceinline__ void store_through_query(const Tile& tile, int number) {
    const auto staging = plan.output(number, warpgroup);
    const float factor = output_factor(tile);
    const unsigned thread = fresh_thread_index(), lane = thread % 32;
    const int row = static_cast<int>(thread / 32 * 16 + lane % 16);
#pragma unroll
    for (int j = 0; j < columns_v / 16; ++j) {
      unsigned matrix[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        matrix[i] = Element::pack(output[j * 8 + i * 2] * factor, output[j * 8 + i * 2 + 1] * factor);
      }
      store_matrices(staging.chunk(row, j * 2 + static_cast<int>(lane / 16)), matrix);
    }
    publish_to_copies();
    named_wait(own_barrier + warpgroup, warpgroup_threads);
    if (leads()) {
      staging.store(arguments.output.map, 0, tile.head, {tile.query.x + warpgroup * Plan::rows, tile.output_y});
      commit_stores();
      plan.tiles().release(number);
    }
  }

  __device__ __forceinline__ void store_from_registers(const Tile& tile, int number) {
    using Storage = typename Element::Storage;
    const Operand& operand = arguments.common.params.output;
    const int64_t first =
        offset_of(arguments.output, operand, arguments.common.params.queries, {tile.query.x, tile.output_y}, tile.head);
    const int row = warpgroup * Plan::rows;
    store_rows_from_registers<Element, Config::head_dim_v>(
        output, output_factor(tile), static_cast<Storage*>(operand.data) + first + row * operand.row_stride,
        operand.row_stride, tile.length_q - tile.first_query - row);
    named_wait(own_barrier + warpgroup, warpgroup_threads);
    if (leads()) plan.tiles().release(number);
  }

  __device__ __forceinline__ void store_output(const Tile& tile, int number) {
    look_for_nan(tile);
    if constexpr (Config::query_in_registers) {
      store_through_query(tile, number);
    } else {
      store_from_registers(tile, number);
    }
  }

  /// A key tile of a tile of queries, and what the loop asks of them, in registers.
  struct Position {
    int key_tiles;  ///< of the tile; 0: there are no more tiles
    int keeps;      ///< the next tile finds K and V in the buffers
    int number;     ///< of the tile
    int key_tile = 0;
    bool full = true;  ///< no score needs a test
    Turn<Config::stages> turn = {};

    __device__ __forceinline__ Position(const Tile& tile, int number_)
        : key_tiles(uniform(tile.key_tiles)), keeps(uniform(tile.keeps)), number(number_) {
      if (key_tiles > 0) full = is_full(tile, 0);
    }
    __device__ __forceinline__ bool ends() const { return key_tile + 1 == key_tiles; }
  };

  __device__ __forceinline__ Position after(const Position& now) const {
    Position next = now;
    if (now.ends()) {
      const Tile& tile = plan.tiles().wait(now.number + 1);
      next = Position(tile, now.number + 1);
      if (next.key_tiles == 0) return next;
      next.turn = uniform(tile.loads) != 0 ? now.turn.next() : now.turn.before(now.key_tile);
    } else {
      ++next.key_tile;
      next.full = is_full(plan.tiles()[now.number], next.key_tile);
      next.turn = now.turn.next();
    }
    // The compiler loses sight of what is uniform in the loop, and would keep it, and every descriptor, in registers.
    next.number = uniform(next.number);
    next.turn.buffer = uniform(next.turn.buffer);
    return next;
  }

  __device__ __forceinline__ void run() {
    const TileRing ring = plan.tiles();
    Position now(ring.wait(0), 0);  // weights are made of it, and P V is about it next
    if (now.key_tiles == 0) return;
    if (warpgroup == 1) give_turn();  // the other begins

    load_query(0);
    if (Config::query_in_registers) {
      publish_to_copies();  // a copy of Q may replace what was read (docs/kernels/hopper-memory-model.md)
      named_wait(own_barrier + warpgroup, warpgroup_threads);
      release_query(0);
    }
    wait_for_turn(plan.key_filled(), now.turn);
    issue_scores(0, 0);
    wait_for_products<0>();
    if (leads() && now.keeps == 0) plan.key_free()[0].arrive();
    if (!Config::query_in_registers && now.ends()) release_query(0);
    apply_function();
    if (!now.full) apply_mask(ring[0], 0);
    pack_weights();

    Position next = after(now);  // Q K^T is about it
    while (next.key_tiles > 0) {
      const bool ends = next.key_tile == 0;  // a tile of queries
      // O of the tile before, in the place of Q
      const bool has_stored = Config::query_in_registers && now.key_tile == 0 && now.number > 0;
      if (ends) {
        if (has_stored) release_query(now.number);
        load_query(next.number);
      }
      wait_for_turn(plan.key_filled(), next.turn);
      take_turn();
      issue_scores(next.number, next.turn.buffer);
      wait_for_turn(plan.value_filled(), now.turn);
      issue_output(now.turn.buffer, now.key_tile > 0);
      give_turn();
      if (has_stored && !ends) release_query(now.number);
      wait_for_products<1>();
      if (leads() && next.keeps == 0) plan.key_free()[next.turn.buffer].arrive();
      if (!Config::query_in_registers && next.ends()) release_query(next.number);
      apply_function();
      if (!next.full) apply_mask(ring[next.number], next.key_tile);
      // Looked up here, while P V runs, so that only the turn lies between its end and the next products.
      const Position last = now;
      now = next;
      next = after(now);
      // Waits for nothing, but begins a block of its own: the compiler would move the function below the wait for P V.
      // A barrier of K or V would not do: it can be a lap further by the time when a slow warp asks, which then waits
      // for ever. The ring keeps this tile until all warps have stored it.
      ring.wait(now.number);
      wait_for_products<0>();
      if (leads() && last.keeps == 0) plan.value_free()[last.turn.buffer].arrive();
      pack_weights();
      if (ends) store_output(ring[last.number], last.number);
    }
    // Takes the turn that is left over: another pass begins with none.
    if (warpgroup == 0) take_turn();
    wait_for_turn(plan.value_filled(), now.turn);
    issue_output(now.turn.buffer, now.key_tile > 0);
    wait_for_products<0>();
    if (Config::query_in_registers) {
      // Nobody has emptied this place: no Q follows.
      if (leads()) wait_for_stores_to_read();
      named_wait(own_barrier + warpgroup, warpgroup_threads);
    }
    store_output(ring[now.number], now.number);
    if (Config::query_in_registers && leads()) wait_for_stores();
  }
};

template <class Config>
__device__ void forward(const ForwardArguments& arguments) {
  using Plan = ForwardPlan<Config>;
  constexpr bool may_begin_again = Config::Activation::bounds_scores;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const Plan plan{shared_memory};
  if (threadIdx.x == 0) {
    plan.initialise_meeting();
    plan.initialise();
  }
  find_share<Config, Plan::threads>(arguments, plan.sums_of_warps(), plan.span());
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (warpgroup == Plan::warpgroups) {
    give_registers_back<Plan::other_registers>();
#pragma unroll 1
    do {
      deal_and_copy([&] { deal_tiles<Config>(arguments, plan.span(), plan.tiles()); },
                    [&] { load_queries<Config>(arguments, plan); }, [&] { load_keys<Config>(arguments, plan); },
                    [&] { load_values<Config>(arguments, plan); });
    } while (may_begin_again && plan.begins_again());
  } else {
    take_registers<Plan::computing_registers>();
    Computing<Config, Scores::taken_for_finite>{arguments, plan, warpgroup}.run();
    if constexpr (may_begin_again) {
      if (plan.begins_again()) Computing<Config, Scores::bounded>{arguments, plan, warpgroup}.run();
    }
  }
}

}  // namespace gdpa::hopper
