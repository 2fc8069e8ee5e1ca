// Config::Mask for a window around the diagonal (gdpa/mask.h). A mask answers three questions: which tiles are the
// partners of a tile, which of them are full, and which scores of a partial tile are valid. docs/kernels/add-a-mask.md
// lists the members of a mask.
#pragma once

#include "common/fragment_ranges.cuh"
#include "common/sequence.cuh"
#include "common/tile_list.cuh"

namespace gdpa {

/// The mask of one batch entry and query head.
struct WindowMask {
  using Tiles = ContiguousTiles;      ///< a list of partner tiles
  using Writers = ContiguousWriters;  ///< the first and last writers of dQ in a list of query tiles
  template <int groups>
  using RowScores = FragmentRanges;  ///< the valid scores of a thread in 16 rows of an accumulator, which are queries
  template <int groups>
  using ColumnScores = FragmentRanges;            ///< the same for rows that are keys
  static constexpr bool needs_registers = false;  ///< whether the test of a score has many intermediate results

  const Mask& window;
  int length_q;
  int length_k;

  GDPA_HOST_DEVICE static WindowMask of(const Params& params, const SequencePair& pair) {
    return {params.mask, pair.length_q, pair.length_k};
  }

  /// Whether every query of every batch entry attends to every key.
  GDPA_HOST_DEVICE static bool keeps_all(const Params& params) { return params.mask.keeps_all(); }

  /// The key tiles of the `queries` queries from `query` on. Queries beyond the sequence do not make a tile partial:
  /// their results are not stored.
  GDPA_HOST_DEVICE Tiles key_tiles(int query, int queries, int tile_keys) const {
    Tiles tiles = tiles_of(keys_of(query, queries), tile_keys);
    const int end = query + queries < length_q ? query + queries : length_q;
    tiles.full = positions_in(tiles.count, true, [&](int i) {
      const int key = tiles.first_row + i * tile_keys;
      return key + tile_keys <= length_k && is_full({query, end}, {key, key + tile_keys});
    });
    return tiles;
  }

  /// The query tiles of the `keys` keys from `key` on.
  GDPA_HOST_DEVICE Tiles query_tiles(int key, int keys, int tile_queries) const {
    Tiles tiles = tiles_of(queries_of(key, keys), tile_queries);
    tiles.full = positions_in(tiles.count, key + keys <= length_k, [&](int i) {
      const int query = tiles.first_row + i * tile_queries;
      return query + tile_queries <= length_q && is_full({query, query + tile_queries}, {key, key + keys});
    });
    return tiles;
  }

  /// The writers of dQ among query_tiles(key, keys, tile_queries).
  GDPA_HOST_DEVICE Writers writers_of(const Tiles& tiles, int key, int keys, int tile_queries) const {
    const auto keys_of_tile = [&](int i) { return keys_of(tiles.first_row + i * tile_queries, tile_queries); };
    const auto is_first = [&](int i) { return keys_of_tile(i).begin + keys_of_tile(i).count <= key + keys; };
    const auto is_last = [&](int i) { return keys_of_tile(i).begin >= key; };
    return {positions_in(tiles.count, key + keys >= length_k || !window.keeps_all(), is_first),
            positions_in(tiles.count, key == 0 || !window.keeps_all(), is_last)};
  }

  GDPA_HOST_DEVICE bool holds(int query, int key) const { return keys_of_query(query).holds(key); }

  /// The valid keys of queries `query` and `query + 8`, and the valid queries of keys `key` and `key + 8`, in a
  /// fragment whose first column is `first_key`, or `first_query`. A row or column beyond the sequences has none.
  template <int groups>
  GDPA_HOST_DEVICE FragmentRanges rows(int query, int first_key) const {
    return {{keys_of_query(query).counted_from(first_key), keys_of_query(query + 8).counted_from(first_key)}};
  }
  template <int groups>
  GDPA_HOST_DEVICE FragmentRanges columns(int key, int first_query) const {
    return {{queries_of_key(key).counted_from(first_query), queries_of_key(key + 8).counted_from(first_query)}};
  }

 private:
  GDPA_HOST_DEVICE ValidRange keys_of_query(int query) const {
    return query < length_q ? keys_of(query, 1) : ValidRange{0, 0};
  }
  GDPA_HOST_DEVICE ValidRange queries_of_key(int key) const {
    return key < length_k ? queries_of(key, 1) : ValidRange{0, 0};
  }
  GDPA_HOST_DEVICE ValidRange keys_of(int query, int count) const {
    return narrow(window.keys({query, end(query, count, length_q)}, length_q, length_k));
  }
  GDPA_HOST_DEVICE ValidRange queries_of(int key, int count) const {
    return narrow(window.queries({key, end(key, count, length_k)}, length_q, length_k));
  }
  GDPA_HOST_DEVICE bool is_full(const Range& queries, const Range& keys) const {
    return window.is_full(queries, keys, length_q, length_k);
  }

  static GDPA_HOST_DEVICE ValidRange narrow(const Range& range) {
    return {static_cast<int>(range.begin), static_cast<int>(range.size())};
  }
  static GDPA_HOST_DEVICE int64_t end(int first, int count, int length) {
    return first + count < length ? first + count : length;
  }
  static GDPA_HOST_DEVICE Tiles tiles_of(const ValidRange& range, int tile_rows) {
    const int first_row = range.begin / tile_rows * tile_rows;
    return {(range.begin + range.count - first_row + tile_rows - 1) / tile_rows, {}, first_row};
  }

  /// The positions for which has(position) is true. They are contiguous. None exists unless `can_exist`.
  template <class Has>
  static GDPA_HOST_DEVICE Positions positions_in(int count, bool can_exist, Has has) {
    Positions positions{can_exist ? 0 : count, count};
    while (positions.begin < positions.end && !has(positions.begin)) ++positions.begin;
    while (positions.begin < positions.end && !has(positions.end - 1)) --positions.end;
    return positions;
  }
};

}  // namespace gdpa
