// Config::Mask for a condition (gdpa/mask_expression.h). The lists of partner tiles are in memory. They have no empty
// tiles, and the condition is evaluated only for the scores of partial tiles.
#pragma once

#include "common/listed_tiles.cuh"
#include "common/sequence.cuh"

namespace gdpa {

/// The mask of one batch entry and query head. Condition is the struct that src/activation/cuda_inputs.cpp prints, and
/// Params::tile_lists[lists] has the lists.
template <class Condition, int lists>
struct ExpressionMask {
  using Tiles = ListedTiles;
  using Writers = ListedWriters;

  /// The valid scores of a row of an accumulator, with two columns in each group of 8 columns.
  template <int groups>
  struct FragmentScores {
    static constexpr int groups_of_word = 16;

    unsigned words[(groups + groups_of_word - 1) / groups_of_word];  ///< a bit for each column

    __device__ __forceinline__ bool holds(int index) const {
      const int bit = index / 8 * 2 + index % 8;
      return (words[bit / 32] >> (bit % 32) & 1) != 0;
    }
  };

  /// The valid scores of one query or of one key.
  struct ValidScores {
    Condition condition;
    int row = 0;
    int length = 0;  ///< of the other side; 0 if the row is beyond its sequence
    bool is_query = true;

    __device__ __forceinline__ bool holds(int other) const {
      if (other >= length) return false;
      return is_query ? condition.holds(row, other) : condition.holds(other, row);
    }

    /// The condition is evaluated in a loop: all of its intermediate results for a row would occupy too many registers.
    template <int groups>
    __device__ __forceinline__ FragmentScores<groups> in_fragment(int origin) const {
      constexpr int groups_of_word = FragmentScores<groups>::groups_of_word;
      FragmentScores<groups> scores{};
#pragma unroll
      for (int first = 0; first < groups; first += groups_of_word) {
        unsigned bits = 0;
#pragma unroll 1
        for (int group = 0; group < groups_of_word && first + group < groups; ++group) {
          const int column = origin + (first + group) * 8;
          const unsigned pair = (holds(column) ? 1u : 0u) | (holds(column + 1) ? 2u : 0u);
          bits |= pair << (group * 2);
        }
        scores.words[first / groups_of_word] = bits;
      }
      return scores;
    }
  };

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
    if (tile_lists.first[pair.b] < 0) return {nullptr, count};
    const int64_t at = tile_lists.key_list(pair.b, list_head, query / queries, query_tiles_, count);
    return {tile_lists.key_tiles + at + 1, tile_lists.key_tiles[at]};
  }
  __device__ Tiles query_tiles(int key, int keys, int tile_queries) const {
    const int key_tiles_ = key_tile_count(keys), count = query_tile_count(tile_queries);
    if (key_tiles_ == 0 || count == 0) return {nullptr, 0};
    const bool is_tile = keys == tile_lists.tile_keys && key % keys == 0;  // rows_layout.cuh has other ranges
    if (!is_tile || tile_lists.first[pair.b] < 0) return {nullptr, count};
    const int64_t at = tile_lists.query_list(pair.b, list_head, key / keys, count, key_tiles_);
    return {tile_lists.query_tiles + at + 1, tile_lists.query_tiles[at]};
  }
  __device__ Writers writers_of(const Tiles& tiles, int key, int keys, int tile_queries) const {
    const int flags =
        (key + keys >= pair.length_k ? TileList::first_writer : 0) | (key == 0 ? TileList::last_writer : 0);
    return {tiles.elements, query_tile_count(tile_queries) + 1, flags};
  }

  __device__ __forceinline__ ValidScores row(int query) const {
    return {condition, query, query < pair.length_q ? pair.length_k : 0, true};
  }
  __device__ __forceinline__ ValidScores column(int key) const {
    const bool exists = static_cast<unsigned>(key) < static_cast<unsigned>(pair.length_k);
    return {condition, key, exists ? pair.length_q : 0, false};
  }

 private:
  __device__ int query_tile_count(int tile_queries) const { return (pair.length_q + tile_queries - 1) / tile_queries; }
  __device__ int key_tile_count(int tile_keys) const { return (pair.length_k + tile_keys - 1) / tile_keys; }
};

}  // namespace gdpa
