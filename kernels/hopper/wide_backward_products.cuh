// Backward for head dims above 128: what both consumer warpgroups have: products, dQ of half of the columns, and the
// epilogue of dK and dV.
#pragma once

#include "hopper/kept_queries.cuh"
#include "hopper/key_gradients.cuh"
#include "hopper/where_needed.cuh"
#include "hopper/wide_backward_storage.cuh"

namespace gdpa::hopper {

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

}  // namespace gdpa::hopper
