// Config::Mask for a condition (gdpa/mask_expression.h). The lists of partner tiles are in memory. They have no empty
// tiles, and the condition is evaluated only for the scores of partial tiles.
#pragma once

#include "common/fragment_columns.cuh"
#include "common/listed_tiles.cuh"
#include "common/sequence.cuh"

namespace gdpa {

/// The mask of one batch entry and query head. Condition is the struct that src/activation/cuda_inputs.cpp prints, and
/// Params::tile_lists[lists] has the lists.
template <class Condition, int lists>
struct ExpressionMask {
  using Tiles = ListedTiles;
  using Writers = ListedWriters;
  static constexpr bool needs_registers = true;

  template <int groups>
  using FragmentScores = FragmentWords<groups>;

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
    const ListedEntry entry = tile_lists.entries[pair.b];
    if (!entry.is_of(pair.length_q, pair.length_k)) return {nullptr, count};
    const int64_t at = tile_lists.query_list(entry, list_head, key / keys, count, key_tiles_);
    return {tile_lists.query_tiles + at + 1, tile_lists.query_tiles[at]};
  }
  __device__ Writers writers_of(const Tiles& tiles, int key, int keys, int tile_queries) const {
    const int flags =
        (key + keys >= pair.length_k ? TileList::first_writer : 0) | (key == 0 ? TileList::last_writer : 0);
    return {tiles.elements, query_tile_count(tile_queries) + 1, flags};
  }

  __device__ __forceinline__ bool holds(int query, int key) const { return condition.holds(query, key); }

  template <int groups>
  __device__ __forceinline__ FragmentScores<groups> rows(int query, int first_key) const {
    return FragmentScores<groups>::of(first_key, [&](const FragmentColumns& keys, unsigned(&valid)[2]) {
      condition.template valid_keys<groups_of_word<groups>>(query, keys, valid);
      keep_existing(keys, pair.length_k, query, pair.length_q, valid);
    });
  }
  template <int groups>
  __device__ __forceinline__ FragmentScores<groups> columns(int key, int first_query) const {
    return FragmentScores<groups>::of(first_query, [&](const FragmentColumns& queries, unsigned(&valid)[2]) {
      condition.template valid_queries<groups_of_word<groups>>(key, queries, valid);
      keep_existing(queries, pair.length_q, key, pair.length_k, valid);
    });
  }

 private:
  /// Bits of groups beyond the fragment are not read.
  template <int groups>
  static constexpr int groups_of_word = groups < FragmentColumns::groups ? groups : FragmentColumns::groups;

  /// Clears the columns beyond `length`, and rows beyond `rows`.
  __device__ __forceinline__ static void keep_existing(const FragmentColumns& columns, int length, int row, int rows,
                                                       unsigned (&valid)[2]) {
    const unsigned existing = columns.below(length);
#pragma unroll
    for (int half = 0; half < 2; ++half) valid[half] &= row + half * 8 < rows ? existing : 0;
  }

  __device__ int query_tile_count(int tile_queries) const { return (pair.length_q + tile_queries - 1) / tile_queries; }
  __device__ int key_tile_count(int tile_keys) const { return (pair.length_k + tile_keys - 1) / tile_keys; }
};

}  // namespace gdpa
