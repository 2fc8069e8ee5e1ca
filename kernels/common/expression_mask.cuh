// Config::Mask for a condition (gdpa/mask_expression.h). The lists of partner tiles are in memory. They have no empty
// tiles, and the condition is evaluated only for the scores of partial tiles.
#pragma once

#include "common/fragment_columns.cuh"
#include "common/fragment_ranges.cuh"
#include "common/listed_tiles.cuh"
#include "common/sequence.cuh"

namespace gdpa {

template <int groups, bool is_range>
struct FragmentOf {
  using Type = FragmentWords<groups>;
};
template <int groups>
struct FragmentOf<groups, true> {
  using Type = FragmentRanges;
};

/// The mask of one batch entry and query head. Condition is the struct that src/activation/cuda_condition.cpp prints,
/// and Params::tile_lists[lists] has the lists.
template <class Condition, int lists>
struct ExpressionMask {
  using Tiles = ListedTiles;
  using Writers = ListedWriters;
  /// A condition whose valid keys are one range is as cheap as a window.
  static constexpr bool needs_registers = !Condition::keys_are_range;

  /// The valid scores of a thread in 16 rows of an accumulator, whose rows are queries, or keys.
  template <int groups>
  using RowScores = typename FragmentOf<groups, Condition::keys_are_range>::Type;
  template <int groups>
  using ColumnScores = typename FragmentOf<groups, Condition::queries_are_range>::Type;

  const TileLists& tile_lists;
  SequencePair pair;
  int list_head;
  Condition condition;

  __device__ __forceinline__ static ExpressionMask of(const Params& params, const SequencePair& pair) {
    const TileLists& tile_lists = params.tile_lists[lists];
    const int group = static_cast<int>(static_cast<unsigned>(params.heads_q) / static_cast<unsigned>(params.heads_k));
    return {tile_lists, pair, tile_lists.heads == 1 ? 0 : pair.head / group, Condition(params, pair)};
  }

  /// Whether all tiles are in the lists.
  GDPA_HOST_DEVICE static bool keeps_all(const Params&) { return false; }

  __device__ Tiles key_tiles(int query, int queries, int tile_keys) const {
    const int count = key_tile_count(tile_keys), query_tiles_ = query_tile_count(queries);
    if (count == 0 || query_tiles_ == 0) return {nullptr, 0};
    const ListedEntry entry = tile_lists.entries[pair.b];
    if (!entry.is_of(pair.length_q, pair.length_k)) return {nullptr, count};
    const int64_t at = tile_lists.key_list(entry, list_head, query / queries, query_tiles_, count);
    return {tile_lists.key_tiles + at + 1, tile_lists.key_tiles[at]};
  }
  __device__ Tiles query_tiles(int key, int keys, int tile_queries) const {
    const int key_tiles_ = key_tile_count(keys), count = query_tile_count(tile_queries);
    if (key_tiles_ == 0 || count == 0) return {nullptr, 0};
    const bool is_tile = keys == tile_lists.tile_keys && key % keys == 0;  // rows_layout.cuh has other ranges
    const ListedEntry entry = tile_lists.entries[pair.b];
    if (!is_tile || !entry.is_of(pair.length_q, pair.length_k)) return {nullptr, count};
    const int64_t at = tile_lists.query_list(entry, list_head, key / keys, count, key_tiles_);
    return {tile_lists.query_tiles + at + 1, tile_lists.query_tiles[at]};
  }
  __device__ Writers writers_of(const Tiles& tiles, int key, int keys, int tile_queries) const {
    const int flags =
        (key + keys >= pair.length_k ? TileList::first_writer : 0) | (key == 0 ? TileList::last_writer : 0);
    return {tiles.elements, query_tile_count(tile_queries) + 1, flags};
  }

  __device__ __forceinline__ bool holds(int query, int key) const { return condition.holds(query, key); }

  /// The valid keys of queries `query` and `query + 8`, and the valid queries of keys `key` and `key + 8`, in a
  /// fragment whose first column is `first_key`, or `first_query`. A row or column beyond the sequences has none.
  template <int groups>
  __device__ __forceinline__ RowScores<groups> rows(int query, int first_key) const {
    if constexpr (Condition::keys_are_range) {
      ColumnRange valid[2];
      condition.template valid_keys<groups>(query, AllColumns{}, valid);
      return ranges(valid, first_key, pair.length_k, query, pair.length_q);
    } else {
      return words<groups>(first_key, pair.length_k, query, pair.length_q, [&](const auto& keys, auto& valid) {
        condition.template valid_keys<groups_of_word<groups>>(query, keys, valid);
      });
    }
  }
  template <int groups>
  __device__ __forceinline__ ColumnScores<groups> columns(int key, int first_query) const {
    if constexpr (Condition::queries_are_range) {
      ColumnRange valid[2];
      condition.template valid_queries<groups>(key, AllColumns{}, valid);
      return ranges(valid, first_query, pair.length_q, key, pair.length_k);
    } else {
      return words<groups>(first_query, pair.length_q, key, pair.length_k, [&](const auto& queries, auto& valid) {
        condition.template valid_queries<groups_of_word<groups>>(key, queries, valid);
      });
    }
  }

 private:
  /// Bits of groups beyond the fragment are not read.
  template <int groups>
  static constexpr int groups_of_word = groups < FragmentColumns::groups ? groups : FragmentColumns::groups;

  /// The valid columns of rows `row` and `row + 8`, without the columns beyond `length` and rows beyond `rows`.
  __device__ __forceinline__ static FragmentRanges ranges(const ColumnRange (&valid)[2], int origin, int length,
                                                          int row, int rows) {
    const auto of_row = [&](int half) {
      return (valid[half] & ColumnRange{0, row + half * 8 < rows ? length : 0}).counted_from(origin);
    };
    return {{of_row(0), of_row(1)}};
  }
  template <int groups, class Valid>
  __device__ __forceinline__ static FragmentWords<groups> words(int origin, int length, int row, int rows,
                                                                Valid valid) {
    return FragmentWords<groups>::of(origin, [&](const FragmentColumns& columns, unsigned(&word)[2]) {
      valid(columns, word);
      const unsigned existing = columns.below(length);
#pragma unroll
      for (int half = 0; half < 2; ++half) word[half] &= row + half * 8 < rows ? existing : 0;
    });
  }

  __device__ int query_tile_count(int tile_queries) const { return (pair.length_q + tile_queries - 1) / tile_queries; }
  __device__ int key_tile_count(int tile_keys) const { return (pair.length_k + tile_keys - 1) / tile_keys; }
};

}  // namespace gdpa
