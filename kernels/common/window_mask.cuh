// Config::Mask for a window around the diagonal (gdpa/mask.h). A mask answers three questions: which tiles are the
// partners of a tile, which of them are full, and which scores of a partial tile are valid. docs/kernels/add-a-mask.md
// lists the members of a mask.
#pragma once

#include "common/fragment_columns.cuh"
#include "common/sequence.cuh"
#include "common/tile_list.cuh"

namespace gdpa {

/// The mask of one batch entry and query head.
struct WindowMask {
  using Tiles = ContiguousTiles;      ///< a list of partner tiles
  using Writers = ContiguousWriters;  ///< the first and last writers of dQ in a list of query tiles
  /// Whether the valid keys of each query are one range, and the valid queries of each key.
  static constexpr bool keys_are_range = true, queries_are_range = true;

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
    const auto is_first = [&](int i) { return keys_of_tile(i).end <= key + keys; };
    const auto is_last = [&](int i) { return keys_of_tile(i).begin >= key; };
    return {positions_in(tiles.count, key + keys >= length_k || !window.keeps_all(), is_first),
            positions_in(tiles.count, key == 0 || !window.keeps_all(), is_last)};
  }

  GDPA_HOST_DEVICE bool holds(int query, int key) const { return keys_of_query(query).holds(key); }

  /// The valid keys of queries `query` and `query + 8`, and the valid queries of keys `key` and `key + 8`, in a
  /// fragment whose first column is `first_key`, or `first_query`. A row or column beyond the sequences has none.
  template <class Fragment>
  GDPA_HOST_DEVICE Fragment rows(int query, int first_key) const {
    return Fragment::of(first_key, keys_of_query(query), keys_of_query(query + 8));
  }
  template <class Fragment>
  GDPA_HOST_DEVICE Fragment columns(int key, int first_query) const {
    return Fragment::of(first_query, queries_of_key(key), queries_of_key(key + 8));
  }

 private:
  GDPA_HOST_DEVICE ColumnRange keys_of_query(int query) const {
    return around(query + shift(), window.left, window.right) & ColumnRange::of_row(query, length_q, length_k);
  }
  GDPA_HOST_DEVICE ColumnRange queries_of_key(int key) const {
    return around(key - shift(), window.right, window.left) & ColumnRange::of_row(key, length_k, length_q);
  }
  GDPA_HOST_DEVICE int shift() const { return static_cast<int>(window.shift_of(length_q, length_k)); }

  /// The columns from `before` columns before the diagonal to `after` columns after it. In 32 bits and without
  /// branches, because consumers evaluate it for each partial tile. With `positive`, no sum overflows, and a column
  /// before a negative diagonal does not exist.
  GDPA_HOST_DEVICE static ColumnRange around(int diagonal, int64_t before, int64_t after) {
    const int positive = diagonal > 0 ? diagonal : 0, most_after = most_side - positive;
    const int narrow_after = narrow(after);
    return {positive - narrow(before), diagonal + (narrow_after < most_after ? narrow_after : most_after) + 1};
  }

  static constexpr int most_side = 0x7ffffffe;  ///< of no bound; the end of its columns is an int
  GDPA_HOST_DEVICE static int narrow(int64_t side) {
    return side >= 0 && side < most_side ? static_cast<int>(side) : most_side;
  }

  GDPA_HOST_DEVICE Range keys_of(int query, int count) const {
    return window.keys({query, end(query, count, length_q)}, length_q, length_k);
  }
  GDPA_HOST_DEVICE Range queries_of(int key, int count) const {
    return window.queries({key, end(key, count, length_k)}, length_q, length_k);
  }
  GDPA_HOST_DEVICE bool is_full(const Range& queries, const Range& keys) const {
    return window.is_full(queries, keys, length_q, length_k);
  }

  static GDPA_HOST_DEVICE int64_t end(int first, int count, int length) {
    return first + count < length ? first + count : length;
  }
  static GDPA_HOST_DEVICE Tiles tiles_of(const Range& range, int tile_rows) {
    const int begin = static_cast<int>(range.begin), first_row = begin / tile_rows * tile_rows;
    return {(static_cast<int>(range.end) - first_row + tile_rows - 1) / tile_rows, {}, first_row};
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
