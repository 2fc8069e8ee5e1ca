// Config::Mask for a condition (gdpa/mask_expression.h). The lists of partner tiles are in memory. They have no empty
// tiles, and the condition is evaluated only for the scores of partial tiles.
#pragma once

#include "common/fragment_columns.cuh"
#include "common/sequence.cuh"
#include "definition/tile_lists.h"

namespace gdpa {

/// A list of partner tiles in memory, which may skip tiles. portable/list_tiles.cuh writes it. Without elements the
/// list has the tiles 0 to count - 1, and each is partial: the lists of a call have a limited size.
struct ListedTiles {
  static constexpr int first_row = 0;

  const int* elements;
  int count;

  __device__ int size() const { return count; }
  __device__ bool is_full(int position) const {
    return elements != nullptr && (__ldg(elements + position) & TileList::full) != 0;
  }
  __device__ int row_offset(int position, int tile_rows) const {
    return (elements == nullptr ? position : __ldg(elements + position) >> TileList::flag_bits) * tile_rows;
  }
  __device__ int last_number(int /*tile_rows*/) const { return count - 1; }

  template <class IsSame>
  __device__ bool has_same_tiles(IsSame is_same) const {
    const auto address = reinterpret_cast<unsigned long long>(elements);
    const bool same_low = is_same(static_cast<int>(address)), same_high = is_same(static_cast<int>(address >> 32));
    return is_same(count) && same_low && same_high;
  }
};

/// The first and last writers of dQ in a list of query tiles.
struct ListedWriters {
  const int* elements;
  int numbers;  ///< from an element to the number of the key tile in the list of the query tile
  int flags;    ///< without elements: the flags of all query tiles

  __device__ bool is_first(int position) const { return (flags_at(position) & TileList::first_writer) != 0; }
  __device__ bool is_last(int position) const { return (flags_at(position) & TileList::last_writer) != 0; }
  __device__ int number_of(int position, int key_tile) const {
    return elements == nullptr ? key_tile : __ldg(elements + position + numbers);
  }

 private:
  __device__ int flags_at(int position) const { return elements == nullptr ? flags : __ldg(elements + position); }
};

/// The mask of one batch entry and query head. Condition is the struct that src/codegen/condition.cpp prints,
/// and Params::tile_lists[lists] has the lists.
template <class Condition, int lists>
struct ExpressionMask {
  using Tiles = ListedTiles;
  using Writers = ListedWriters;
  static constexpr bool keys_are_range = Condition::keys_are_range, queries_are_range = Condition::queries_are_range;

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
    const bool is_tile = keys == tile_lists.tile_keys && key % keys == 0;  // not of rows of the operand
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
  template <class Fragment>
  __device__ __forceinline__ Fragment rows(int query, int first_key) const {
    if constexpr (keys_are_range) {
      ColumnRange valid[2];
      condition.template valid_keys<0>(query, AllColumns{}, valid);
      return of_ranges<Fragment>(valid, first_key, pair.length_k, query, pair.length_q);
    } else {
      return of_words<Fragment>(first_key, pair.length_k, query, pair.length_q, [&](const auto& keys, auto& valid) {
        condition.template valid_keys<Fragment::groups_of_word>(query, keys, valid);
      });
    }
  }
  template <class Fragment>
  __device__ __forceinline__ Fragment columns(int key, int first_query) const {
    if constexpr (queries_are_range) {
      ColumnRange valid[2];
      condition.template valid_queries<0>(key, AllColumns{}, valid);
      return of_ranges<Fragment>(valid, first_query, pair.length_q, key, pair.length_k);
    } else {
      return of_words<Fragment>(first_query, pair.length_q, key, pair.length_k, [&](const auto& queries, auto& valid) {
        condition.template valid_queries<Fragment::groups_of_word>(key, queries, valid);
      });
    }
  }

 private:
  /// The valid columns of rows `row` and `row + 8`, without the columns beyond `length` and rows beyond `rows`.
  template <class Fragment>
  __device__ __forceinline__ static Fragment of_ranges(const ColumnRange (&valid)[2], int origin, int length, int row,
                                                       int rows) {
    return Fragment::of(origin, valid[0] & ColumnRange::of_row(row, rows, length),
                        valid[1] & ColumnRange::of_row(row + 8, rows, length));
  }
  template <class Fragment, class Valid>
  __device__ __forceinline__ static Fragment of_words(int origin, int length, int row, int rows, Valid valid) {
    return Fragment::of(origin, [&](const FragmentColumns& columns, unsigned(&word)[2]) {
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
