// Backward for head dims above 128: the memory of the kernel, and the code that both consumers use: dQ of half of the
// columns, and the epilogue of dK and dV.
#pragma once

#include "common/epilogues.cuh"
#include "hopper/grad_query_accumulators.cuh"
#include "hopper/key_major.cuh"
#include "hopper/rows.cuh"
#include "hopper/second_pass.cuh"
#include "hopper/valid_queries.cuh"

namespace gdpa::hopper {

enum class Role : int { value, key };

/// The bytes of f' of a tile, in fp32.
template <class Config>
constexpr int derivative_bytes = Config::tile_keys* Config::tile_queries* static_cast<int>(sizeof(float));

/// K has one stage. dS has two, because the dV consumer uses it later.
template <class Config>
struct WideBackwardStorage : KeyMajorStorage<Config, 1, derivative_bytes<Config>> {
  using Base = KeyMajorStorage<Config, 1, derivative_bytes<Config>>;
  using Base::rows, Base::warpgroups;
  static constexpr int load_threads = 3;
  static constexpr int working_consumers = Base::computes_ds ? 2 : 1;
  static_assert(Config::tile_keys == rows && Config::tile_queries == rows, "as many as a product has");
  static_assert(!Config::keys_shared && !Config::ordered, "the portable kernels have these");
  static_assert(!Config::has_dq_semaphores, "accumulators are cleared before, and rounded afterwards");
  static constexpr int shared_bytes = Base::end;
  static_assert(shared_bytes <= 227 * 1024, "more than a CTA can have");

  /// The named barrier of both consumers: f' of a query tile is in shared memory.
  static constexpr int derivatives_written = 1;
  static constexpr int consumer_threads = warpgroups * warpgroup_threads;

  /// Four numbers of f' of a thread. The thread of the same index in the other consumer has the same elements.
  __device__ unsigned derivatives(int piece) const {
    return Base::at(Base::own_at) + (static_cast<unsigned>(piece) * warpgroup_threads + thread_in_warpgroup()) * 16;
  }

  __device__ void initialise() const {
    this->query_pipeline().initialise(1, working_consumers);
    this->grad_output_pipeline().initialise(1, working_consumers);
    this->next_key_tile_due().initialise(2);  // the producer threads of Q and of dO
    this->key_pipeline().initialise(1, working_consumers);
    this->value_pipeline().initialise(1, 1);
    // Also orders the reads of f': each thread arrives, because racecheck sees no other order between them.
    this->ds_pipeline().initialise(warpgroup_threads, warpgroups);
    this->tiles().initialise(key_tile_words<typename Config::Mask>, consumer_threads + load_threads);
    fence_barrier_init();
  }
};

template <class Config>
using wide_backward_cta = WideBackwardStorage<Config>;

template <int count>
__device__ __forceinline__ void clear(float (&accumulators)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) accumulators[i] = 0.0f;
}

/// A query tile of a key tile.
template <class Config>
struct QueryTileIterator {
  using Mask = typename Config::Mask;
  using Tile = KeyTile<Mask>;
  int head;
  int position;  ///< in the list of the key tile

  __device__ __forceinline__ void advance(const Tile& tile) {
    if (++position == tile.queries.size()) {
      position = 0;
      ++head;
    }
  }
  /// Its first row, counted from queries.first_row of the key tile.
  __device__ __forceinline__ int row(const Tile& tile) const {
    return tile.queries.row_offset(position, Config::tile_queries);
  }
  __device__ __forceinline__ int first_query(const Tile& tile) const { return tile.queries.first_row + row(tile); }

  /// Whether no score is masked.
  __device__ __forceinline__ bool is_full(const Tile& tile) const {
    return broadcast_lane_0(static_cast<int>(tile.queries.is_full(position))) != 0;
  }
  /// The first score of a thread.
  __device__ __forceinline__ ScoreIndex first_score(const Tile& tile) const {
    return score_index(first_query(tile), tile.first_key);
  }
  __device__ __forceinline__ ValidQueries<Mask> valid(const BackwardArguments& arguments, const Tile& tile) const {
    const SequencePair pair = tile.pair(arguments.common.params, head);
    return {Mask::of(arguments.common.params, pair), tile.first_key, first_query(tile)};
  }
};

/// dQ of one consumer, in one chunk or two: the first or the last blocks of 64 columns of K, and half of the middle
/// block.
template <class Config, Role role>
struct GradQueryHalf {
  using Element = typename Config::Element;
  using Tile = KeyTile<typename Config::Mask>;
  using Shared = WideBackwardStorage<Config>;
  static constexpr int blocks = Shared::KeysTile::blocks;
  static constexpr int last_chunk = (blocks + 1) / 2 - 1;
  static constexpr int columns(int chunk) { return chunk < blocks / 2 ? 64 : 32; }
  static constexpr int first_column(int chunk) {
    const int index = static_cast<int>(role);
    return chunk < blocks / 2 ? (index * (blocks - blocks / 2) + chunk) * 64 : blocks / 2 * 64 + index * 32;
  }

  float first[columns(0) / 2];
  float last[columns(last_chunk) / 2];  ///< of two chunks

  template <int chunk>
  __device__ __forceinline__ auto& accumulators() {
    if constexpr (chunk == 0) {
      return first;
    } else {
      return last;
    }
  }

  /// Called before the first step, so that the registers are free until then.
  __device__ __forceinline__ void clear() { hopper::clear(accumulators<last_chunk>()); }

  template <int chunk>
  __device__ __forceinline__ void issue(const Shared& shared, int step) {
    constexpr unsigned column = Shared::KeysTile::column_step(first_column(chunk) / 16);
    issue_group([&] { multiply_rows<Element>(accumulators<chunk>(), shared.ds(step), 0, shared.keys(0), column); });
  }

  /// Adds to the fp32 accumulators of a query tile: one of the two rows of a thread, or both.
  template <int chunk, int half>
  __device__ __forceinline__ void add_row(const BackwardArguments& arguments, const Tile& tile,
                                          const QueryTileIterator<Config>& position) {
    const bool is_number = arguments.common.params.out_scale.kind == OutputScale::Kind::number;
    const auto function = Config::Activation::of(arguments.common.params, position.head);
    // round_grad_query applies an out_scale that is a number.
    const float factor = function.derivative_factor() * (is_number ? 1.0f : tile.out_scale);
    const unsigned thread = thread_in_warpgroup(), lane = thread % 32;
    const int row = position.row(tile) + half * 8 + static_cast<int>(thread / 32 * 16 + lane / 4);
    if (tile.queries.first_row + row >= tile.length_q) return;
    float* const to =
        accumulators_at<Config>(arguments, position.head, first_column(chunk) / column_group, tile.grad_query + row) +
        lane % 4 * 4;
    const int64_t block_elements = arguments.common.packed_rows_q * column_group;
#pragma unroll
    for (int j = 0; j < columns(chunk) / column_group; ++j) {
      if (first_column(chunk) + j * column_group >= Config::head_dim) break;
      const float* const group = accumulators<chunk>() + j * 8 + half * 2;
      const float four[4] = {group[0] * factor, group[1] * factor, group[4] * factor, group[5] * factor};
      reduce_add(to + j * block_elements, four);
    }
  }
  template <int chunk>
  __device__ __forceinline__ void add(const BackwardArguments& arguments, const Tile& tile,
                                      const QueryTileIterator<Config>& position) {
    add_row<chunk, 0>(arguments, tile, position);
    add_row<chunk, 1>(arguments, tile, position);
  }
};

/// The state of both consumers, for one key tile. Nothing stays in registers from one key tile to the next.
template <class Config, Role role>
struct WideConsumer {
  using Element = typename Config::Element;
  using Tile = KeyTile<typename Config::Mask>;
  using Shared = WideBackwardStorage<Config>;
  using GradQuery = GradQueryHalf<Config, role>;
  static constexpr bool has_two_chunks = Config::computes_grad_query && GradQuery::last_chunk > 0;

  const BackwardArguments& arguments;
  const Shared& shared;
  GradQuery grad_query;
  QueryTileIterator<Config> position;  ///< of this step
  QueryTileIterator<Config> before;    ///< of the previous step

  __device__ __forceinline__ WideConsumer(const BackwardArguments& arguments_, const Shared& shared_, const Tile& tile)
      : arguments(arguments_), shared(shared_), position{broadcast_lane_0(tile.first_head), 0}, before(position) {}

  __device__ __forceinline__ void advance(const Tile& tile) {
    before = position;
    position.advance(tile);
  }

  __device__ __forceinline__ static bool leads() { return thread_in_warpgroup() == 0; }
  template <int stages>
  __device__ __forceinline__ static void release(const Pipeline<stages>& pipeline, int iteration) {
    if (leads()) pipeline.consumer_release(iteration);
  }

  template <int columns, int half_columns>
  __device__ __forceinline__ void store(const float (&accumulators)[half_columns], float factor,
                                        const Operand& gradient, int64_t offset, const Tile& tile) const {
    const int rows = tile.length_k - tile.first_key;
    flag_non_finite<Config>(arguments, rows, accumulators);
    store_rows_from_registers<Element, columns>(
        accumulators, [of_row = ScaledRow{factor * tile.out_scale}](int) { return of_row; },
        static_cast<typename Element::Storage*>(gradient.data) + offset, gradient.row_stride, rows);
  }
};

}  // namespace gdpa::hopper
