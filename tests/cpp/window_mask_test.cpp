// WindowMask: the valid scores of a partial tile, which are computed in 32 bits, are those of gdpa::Mask, which
// computes in 64 bits. As words and as ranges.
#include "common/window_mask.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

namespace gdpa::test {
namespace {

constexpr int groups = 24, columns = groups * 8;  // two words

bool is_valid(const Mask& mask, int length_q, int length_k, int64_t query, int64_t key) {
  if (query >= length_q || key >= length_k) return false;
  const Range keys = mask.keys({query, query + 1}, length_q, length_k);
  return key >= keys.begin && key < keys.end;
}

/// The scores of all threads in 16 rows from `query` on, and in 16 rows from `key` on, compared with the mask.
template <class Fragment>
int count_wrong(const Mask& mask, int length_q, int length_k, int query, int key) {
  const WindowMask window{mask, length_q, length_k};
  const auto expected = [&](int64_t i, int64_t j) { return is_valid(mask, length_q, length_k, i, j); };
  int wrong = 0;
  for (int lane = 0; lane < 4; ++lane) {  // of the columns 8 n + 2 lane and 8 n + 2 lane + 1
    const auto of_query = window.rows<Fragment>(query, key + lane * 2);
    const auto of_key = window.columns<Fragment>(key, query + lane * 2);
    for (int half = 0; half < 2; ++half) {
      for (int column = 0; column < columns; column += column % 2 == 0 ? 1 : 7) {
        const int64_t row = half * 8, at = int64_t{lane} * 2 + column;
        wrong += of_query.holds(half, column) != expected(query + row, key + at) ? 1 : 0;
        wrong += of_key.holds(half, column) != expected(query + at, key + row) ? 1 : 0;
      }
    }
  }
  return wrong;
}

void expect_valid(const Mask& mask, int length_q, int length_k, int query, int key) {
  SCOPED_TRACE(testing::Message() << "window " << mask.left << ", " << mask.right << ", lengths " << length_q << ", "
                                  << length_k << ", query " << query << ", key " << key);
  EXPECT_EQ(count_wrong<FragmentWords<groups>>(mask, length_q, length_k, query, key), 0);
  EXPECT_EQ(count_wrong<FragmentRanges>(mask, length_q, length_k, query, key), 0);
}

TEST(WindowMask, SelectsTheScoresOfTheMask) {
  for (const Diagonal diagonal : {Diagonal::bottom_right, Diagonal::upper_left}) {
    for (const int64_t left : {-1, 0, 3, 100, 1000}) {
      for (const int64_t right : {-1, 0, 3, 100, 1000}) {
        for (const int length_q : {1, 37, 128, 400}) {
          for (const int length_k : {1, 37, 128, 400}) {
            for (const int query : {0, 5, 128, 256}) {
              for (const int key : {0, 13, 128, 256}) {
                expect_valid({left, right, diagonal}, length_q, length_k, query, key);
              }
            }
          }
        }
      }
    }
  }
}

TEST(WindowMask, SidesAndLengthsMayBeTheLargest) {
  constexpr int longest = 0x7fff0000;  // most_gpu_rows
  const std::vector<int64_t> sides = {-1,
                                      0,
                                      longest - 300,
                                      std::numeric_limits<int>::max() - 1,
                                      std::numeric_limits<int>::max(),
                                      int64_t{1} << 31,
                                      int64_t{1} << 40,
                                      std::numeric_limits<int64_t>::max()};
  for (const Diagonal diagonal : {Diagonal::bottom_right, Diagonal::upper_left}) {
    for (const int64_t left : sides) {
      for (const int64_t right : sides) {
        for (const int length_q : {300, longest}) {
          for (const int length_k : {300, longest}) {
            for (const int from_query_end : {length_q, 256, 128}) {
              for (const int from_key_end : {length_k, 256, 128}) {
                expect_valid({left, right, diagonal}, length_q, length_k, length_q - from_query_end,
                             length_k - from_key_end);
              }
            }
          }
        }
      }
    }
  }
}

/// A list of partner tiles has every tile with a score. It has no tile before the first such tile or after the last
/// one. A tile is full if all its scores exist and are valid.
struct TileCheck {
  Mask mask;
  int length_q;
  int length_k;

  /// The number of valid scores of a tile.
  int count(Range queries, Range keys) const {
    int valid = 0;
    for (int64_t i = queries.begin; i < queries.end; ++i) {
      for (int64_t j = keys.begin; j < keys.end; ++j) valid += is_valid(mask, length_q, length_k, i, j) ? 1 : 0;
    }
    return valid;
  }

  void expect_key_tiles(int query, int queries, int tile_keys) const {
    const Range rows{query, std::min(query + queries, length_q)};
    const auto tiles = WindowMask{mask, length_q, length_k}.key_tiles(query, queries, tile_keys);
    const auto scores_of = [&](int first_key) { return count(rows, {first_key, first_key + tile_keys}); };
    expect_list(tiles, tile_keys, length_k, scores_of, static_cast<int>(rows.size()) * tile_keys);
  }

  void expect_query_tiles(int key, int keys, int tile_queries) const {
    const auto tiles = WindowMask{mask, length_q, length_k}.query_tiles(key, keys, tile_queries);
    const auto scores_of = [&](int first) { return count({first, first + tile_queries}, {key, key + keys}); };
    expect_list(tiles, tile_queries, length_q, scores_of, keys * tile_queries);
  }

  template <class ScoresOf>
  static void expect_list(const ContiguousTiles& tiles, int tile_rows, int length, ScoresOf scores_of, int all) {
    const int end = tiles.first_row + tiles.size() * tile_rows;
    if (tiles.size() > 0) {
      EXPECT_GT(scores_of(tiles.first_row), 0);
      EXPECT_GT(scores_of(end - tile_rows), 0);
    }
    for (int first = 0; first < length; first += tile_rows) {
      const bool is_listed = tiles.size() > 0 && first >= tiles.first_row && first < end;
      const int scores = scores_of(first);
      EXPECT_TRUE(is_listed || scores == 0) << "tile at " << first;
      if (is_listed) {
        EXPECT_EQ(tiles.is_full((first - tiles.first_row) / tile_rows), scores == all) << "tile at " << first;
      }
    }
  }

  /// Of the key tiles with a query tile in their list, the last one is the first writer and the first one the last.
  void expect_writers(int tile_keys, int tile_queries) const {
    const WindowMask window{mask, length_q, length_k};
    std::map<int, std::vector<std::pair<bool, bool>>> writers;  // of a query tile: first and last, for each key tile
    for (int key = 0; key < length_k; key += tile_keys) {
      const auto tiles = window.query_tiles(key, tile_keys, tile_queries);
      const auto of_key = window.writers_of(tiles, key, tile_keys, tile_queries);
      for (int i = 0; i < tiles.size(); ++i) {
        writers[tiles.first_row + i * tile_queries].emplace_back(of_key.is_first(i), of_key.is_last(i));
      }
    }
    for (const auto& [query, of_tile] : writers) {
      for (std::size_t i = 0; i < of_tile.size(); ++i) {
        EXPECT_EQ(of_tile[i].first, i + 1 == of_tile.size()) << "queries from " << query << ", key tile " << i;
        EXPECT_EQ(of_tile[i].second, i == 0) << "queries from " << query << ", key tile " << i;
      }
    }
  }
};

TEST(WindowMask, ListsTheTilesWithScoresAndTheWritersOfEachQueryTile) {
  for (const Diagonal diagonal : {Diagonal::bottom_right, Diagonal::upper_left}) {
    for (const int64_t left : {-1, 0, 3, 16, 40}) {
      for (const int64_t right : {-1, 0, 3, 16, 40}) {
        for (const int length_q : {1, 16, 37, 64}) {
          for (const int length_k : {1, 16, 37, 64}) {
            SCOPED_TRACE(testing::Message() << "window " << left << ", " << right << ", lengths " << length_q << ", "
                                            << length_k << ", diagonal " << static_cast<int>(diagonal));
            const TileCheck check{{left, right, diagonal}, length_q, length_k};
            for (int row = 0; row < length_q; row += 16) check.expect_key_tiles(row, 16, 8);
            for (int row = 0; row < length_k; row += 8) check.expect_query_tiles(row, 8, 16);
            check.expect_writers(8, 16);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace gdpa::test
