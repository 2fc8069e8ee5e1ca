// Forward on Hopper's tensor cores (WGMMA), fed by its copy engine (TMA): O = out_scale * f(scale * Q K^T) V.
//
// One CTA on each multiprocessor stays there and takes tiles of 128 queries. Three kinds of warps work side by side:
//
//     dealer    1 warp          finds tiles and lays them into a ring (schedule.cuh)
//     loader    1 warp          Q of each tile; K and V of its key tiles into `stages` buffers each
//     computing 2 warpgroups    64 queries each: S = Q K^T, P = f(scale * S), O += P V; O to its own buffer and away
//
// A warpgroup issues S of the next key tile, which may be the next query tile's first, before P V of this one, and
// computes P of the next while the tensor cores are at P V of this one: nothing is drained between tiles. The two
// warpgroups take turns in issuing, so that one's products run under the other's function. Q and P are operands in
// registers. There is no maximum and no sum, so nothing else is carried from one key tile to the next.
//
// Config: struct with
//     using Element, Activation;      BFloat16 or Float16; value(s)
//     int head_dim, head_dim_v;       multiples of 8, at most 128
//     int tile_queries, tile_keys;    128; 64, 128, 192 or 256
//     int stages;                     of K, and of V
//
// Launch: grid any number of CTAs, best one for each multiprocessor; block forward_threads<Config>; dynamic shared
//         memory forward_shared_bytes<Config>; no workspace.
#pragma once

#include "hopper/schedule.cuh"
#include "hopper/tile.cuh"
#include "hopper/warpgroup.cuh"

namespace gdpa::hopper {

/// Who is who, and what lies where in shared memory.
template <class Config>
struct ForwardPlan {
  static constexpr int warpgroups = 2;  ///< that compute
  static constexpr int rows = 64;       ///< queries of a warpgroup
  static constexpr int threads = (warpgroups + 1) * warpgroup_threads;
  static_assert(Config::tile_queries == warpgroups * rows, "a warpgroup takes 64 queries");
  // 65,536 registers in all, in multiples of 8 a thread.
  static constexpr int computing_registers = 224;
  static constexpr int other_registers = 56;

  using QueryTile = SwizzledTile<Config::tile_queries, Config::head_dim>;
  using KeyTile = SwizzledTile<Config::tile_keys, Config::head_dim>;
  using ValueTile = SwizzledTile<Config::tile_keys, Config::head_dim_v>;
  using OutputTile = SwizzledTile<rows, Config::head_dim_v>;
  using StageTurn = Turn<Config::stages>;

  static constexpr int keys_at = QueryTile::bytes;
  static constexpr int values_at = keys_at + Config::stages * KeyTile::bytes;
  static constexpr int output_at = values_at + Config::stages * ValueTile::bytes;
  static constexpr int barriers_at = output_at + warpgroups * OutputTile::bytes;
  static constexpr int stage_barriers = Barriers<Config::stages>::bytes;
  static constexpr int ring_at = barriers_at + 4 * stage_barriers + 2 * Barrier::bytes;
  static constexpr int shared_bytes = ring_at + TileRing::bytes;

  unsigned char* memory;

  __device__ unsigned at(int offset) const { return shared_address(memory) + static_cast<unsigned>(offset); }
  __device__ QueryTile query() const { return {at(0)}; }
  __device__ KeyTile keys() const { return {at(keys_at)}; }
  __device__ ValueTile values() const { return {at(values_at)}; }
  __device__ OutputTile output(int warpgroup) const { return {at(output_at + warpgroup * OutputTile::bytes)}; }

  __device__ Barriers<Config::stages> key_filled() const { return {at(barriers_at)}; }
  __device__ Barriers<Config::stages> key_free() const { return {at(barriers_at + stage_barriers)}; }
  __device__ Barriers<Config::stages> value_filled() const { return {at(barriers_at + 2 * stage_barriers)}; }
  __device__ Barriers<Config::stages> value_free() const { return {at(barriers_at + 3 * stage_barriers)}; }
  __device__ Barrier query_filled() const { return {at(barriers_at + 4 * stage_barriers)}; }
  __device__ Barrier query_free() const { return {at(barriers_at + 4 * stage_barriers + Barrier::bytes)}; }
  __device__ TileRing tiles() const {
    constexpr int barriers = ring_at + tile_slots * static_cast<int>(sizeof(Tile));
    return {reinterpret_cast<Tile*>(memory + ring_at), {at(barriers)}, {at(barriers + Barriers<tile_slots>::bytes)}};
  }

  __device__ void initialise() const {
    key_filled().initialise(1);
    key_free().initialise(warpgroups);
    value_filled().initialise(1);
    value_free().initialise(warpgroups);
    query_filled().initialise(1);
    query_free().initialise(warpgroups * 4);  // every warp takes its own rows
    tiles().initialise(warpgroups + 1);
    publish_barriers();
  }
};

template <class Config>
constexpr int forward_threads = ForwardPlan<Config>::threads;
template <class Config>
constexpr int forward_shared_bytes = ForwardPlan<Config>::shared_bytes;

/// The loader's work, by one thread.
template <class Config>
__device__ void load_tiles(const ForwardArguments& arguments, const ForwardPlan<Config>& plan) {
  using Plan = ForwardPlan<Config>;
  const TileRing ring = plan.tiles();
  TileRing::Position position;
  typename Plan::StageTurn turn;
  for (unsigned query_parity = 1;; query_parity ^= 1u) {
    const Tile& tile = ring.wait(position);
    if (tile.key_tiles == 0) return;
    plan.query_free().wait(query_parity);
    plan.query_filled().arrive_and_expect(Plan::QueryTile::bytes);
    plan.query().load(arguments.query.map, plan.query_filled().address, tile.head, tile.query);
    for (int i = 0; i < tile.key_tiles; ++i) {
      const int row = i * Config::tile_keys;
      const Barrier keys = plan.key_filled()[turn.index];
      plan.key_free()[turn.index].wait(turn.parity ^ 1u);
      keys.arrive_and_expect(Plan::KeyTile::bytes);
      plan.keys()
          .stage(turn.index)
          .load(arguments.key.map, keys.address, tile.key_head, {tile.key.x + row, tile.key.y});
      const Barrier values = plan.value_filled()[turn.index];
      plan.value_free()[turn.index].wait(turn.parity ^ 1u);
      values.arrive_and_expect(Plan::ValueTile::bytes);
      plan.values()
          .stage(turn.index)
          .load(arguments.value.map, values.address, tile.key_head, {tile.value.x + row, tile.value.y});
      turn = turn.next();
    }
    ring.release(position);
    position = position.next();
  }
}

/// One warpgroup that computes.
template <class Config>
struct Computing {
  using Element = typename Config::Element;
  using Plan = ForwardPlan<Config>;
  static constexpr int steps = (Config::head_dim + 15) / 16;  ///< of Q K^T
  static constexpr int columns_v = Plan::ValueTile::columns;
  static constexpr int key_steps = Config::tile_keys / 16;  ///< of P V
  using ScoreProduct = WarpgroupProduct<Element, Config::tile_keys>;
  using OutputProduct = WarpgroupProduct<Element, columns_v>;
  // Numbered barriers: one for each warpgroup's own threads, one for each warpgroup's turn to issue.
  static constexpr int own_barrier = 1, turn_barrier = own_barrier + Plan::warpgroups;

  const ForwardArguments& arguments;
  const Plan& plan;
  const int warpgroup;
  const float scale;

  unsigned query[steps][4];
  float scores[Config::tile_keys / 2];
  unsigned weights[key_steps][4];
  float output[columns_v / 2];

  __device__ __forceinline__ static bool leads() { return threadIdx.x % warpgroup_threads == 0; }

  __device__ __forceinline__ void load_query() {
    const int thread = fresh_thread_index(), lane = thread % 32;
    const int row = warpgroup * Plan::rows + thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int step = 0; step < steps; ++step) load_matrices(query[step], plan.query().chunk(row, step * 2 + lane / 16));
    __syncwarp();
    if (lane == 0) plan.query_free().arrive();
  }

  __device__ __forceinline__ void issue_scores(int stage) {
    const OperandDescriptor keys = plan.keys().stage(stage).by_columns();
    begin_products();
#pragma unroll
    for (int step = 0; step < steps; ++step) {
      ScoreProduct::template multiply_add<false>(scores, query[step], keys.at(Plan::KeyTile::column_step(step)), step > 0);
    }
    commit_products();
  }

  __device__ __forceinline__ void issue_output(int stage, bool add) {
    const OperandDescriptor values = plan.values().stage(stage).by_rows();
    begin_products();
#pragma unroll
    for (int step = 0; step < key_steps; ++step) {
      OutputProduct::template multiply_add<true>(output, weights[step], values.at(Plan::ValueTile::row_step(step)), add || step > 0);
    }
    commit_products();
  }

  /// Scores to weights, still in fp32 and in the registers of the scores.
  __device__ __forceinline__ void apply_function() {
#pragma unroll
    for (int i = 0; i < Config::tile_keys / 2; ++i) scores[i] = Config::Activation::value(scores[i] * scale);
  }

  __device__ __forceinline__ static bool needs_mask(const Tile& tile, int key_tile) {
    return key_tile < uniform(tile.full_begin) || key_tile >= uniform(tile.full_end);
  }

  /// Weights that do not count become 0, whatever they are: f(0) may be infinite.
  __device__ __forceinline__ void apply_mask(const Tile& tile, int key_tile) {
    const MaskOfSequence mask{arguments.common.params.mask, tile.length_q, tile.length_k};
    const int first_key = tile.first_key + key_tile * Config::tile_keys;
    const int thread = fresh_thread_index(), lane = thread % 32;
    const int row = tile.first_query + warpgroup * Plan::rows + thread / 32 * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Kept kept = mask.row(row + half * 8);
      kept.begin -= first_key + lane % 4 * 2;
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
        weights[step][i] = Element::pack(scores[step * 8 + i * 2], scores[step * 8 + i * 2 + 1]);
      }
    }
  }

  /// O through shared memory into the rows of the sequence; rows beyond it are cut off by the map.
  __device__ __forceinline__ void store_output(const Tile& tile) {
    const auto staging = plan.output(warpgroup);
    const float factor = tile.out_scale;
    const int thread = fresh_thread_index(), lane = thread % 32;
    const int row = thread / 32 * 16 + lane % 16;
    if (leads()) wait_for_stores_to_read();
    named_wait(own_barrier + warpgroup, warpgroup_threads);
#pragma unroll
    for (int j = 0; j < columns_v / 16; ++j) {
      unsigned matrix[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        matrix[i] = Element::pack(output[j * 8 + i * 2] * factor, output[j * 8 + i * 2 + 1] * factor);
      }
      store_matrices(staging.chunk(row, j * 2 + lane / 16), matrix);
    }
    publish_to_copies();
    named_wait(own_barrier + warpgroup, warpgroup_threads);
    if (leads()) {
      staging.store(arguments.output.map, tile.head, {tile.output.x + warpgroup * Plan::rows, tile.output.y});
      commit_stores();
    }
  }

  __device__ __forceinline__ void run() {
    const TileRing ring = plan.tiles();
    TileRing::Position position;
    typename Plan::StageTurn turn;  // of the key tile whose weights are made, or being made
    unsigned query_parity = 0;
    int key_tiles = uniform(ring.wait(position).key_tiles);
    if (key_tiles == 0) return;
    if (warpgroup == 1) named_arrive(turn_barrier, Plan::warpgroups * warpgroup_threads);  // the other begins

    int key_tile = 0;
    plan.query_filled().wait(query_parity);
    load_query();
    plan.key_filled()[0].wait(0);
    issue_scores(0);
    wait_for_products<0>();
    if (leads()) plan.key_free()[0].arrive();
    apply_function();
    if (needs_mask(ring[position], 0)) apply_mask(ring[position], 0);
    pack_weights();

    for (;;) {
      // Here: weights of key tile `key_tile` of the tile at `position`; sums of the key tiles before it.
      const bool ends = key_tile + 1 == key_tiles;
      const TileRing::Position next_position = ends ? position.next() : position;
      const int next_key_tile = ends ? 0 : key_tile + 1;
      if (ends) {
        key_tiles = uniform(ring.wait(next_position).key_tiles);
        if (key_tiles == 0) break;
        query_parity ^= 1u;
        plan.query_filled().wait(query_parity);
        load_query();
      }
      // The compiler loses sight of a uniform index in the loop, and then moves every descriptor between register files.
      turn.index = uniform(turn.index);
      typename Plan::StageTurn next_turn = turn.next();
      next_turn.index = uniform(next_turn.index);
      plan.key_filled()[next_turn.index].wait(next_turn.parity);
      named_wait(turn_barrier + warpgroup, Plan::warpgroups * warpgroup_threads);
      issue_scores(next_turn.index);
      plan.value_filled()[turn.index].wait(turn.parity);
      issue_output(turn.index, key_tile > 0);
      named_arrive(turn_barrier + (warpgroup ^ 1), Plan::warpgroups * warpgroup_threads);
      wait_for_products<1>();
      if (leads()) plan.key_free()[next_turn.index].arrive();
      apply_function();
      const Tile& next = ring[next_position];
      if (needs_mask(next, next_key_tile)) apply_mask(next, next_key_tile);
      // Waits for nothing, but begins a block of its own: the compiler would move the function below the wait for P V.
      plan.value_filled()[turn.index].wait(turn.parity);
      wait_for_products<0>();
      if (leads()) plan.value_free()[turn.index].arrive();
      pack_weights();
      if (ends) {
        store_output(ring[position]);
        if (leads()) ring.release(position);
      }
      position = next_position;
      key_tile = next_key_tile;
      turn = next_turn;
    }
    plan.value_filled()[turn.index].wait(turn.parity);
    issue_output(turn.index, key_tile > 0);
    wait_for_products<0>();
    store_output(ring[position]);
    if (leads()) wait_for_stores();
  }
};

template <class Config>
__device__ void forward(const ForwardArguments& arguments) {
  using Plan = ForwardPlan<Config>;
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  const Plan plan{shared_memory};
  if (threadIdx.x == 0) plan.initialise();
  __syncthreads();
  const int warpgroup = warpgroup_index();
  if (warpgroup == Plan::warpgroups) {
    give_registers_back<Plan::other_registers>();
    const int warp = warp_index() - Plan::warpgroups * 4;
    if (warp == 0) deal_tiles<Config>(arguments, plan.tiles());
    if (warp == 1 && lane_index() == 0) load_tiles<Config>(arguments, plan);
  } else {
    take_registers<Plan::computing_registers>();
    Computing<Config> computing{arguments, plan, warpgroup, static_cast<float>(arguments.common.params.scale)};
    computing.run();
  }
}

}  // namespace gdpa::hopper
