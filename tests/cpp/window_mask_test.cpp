// WindowMask: the valid scores of a partial tile, which are computed in 32 bits, are those of gdpa::Mask, which
// computes in 64 bits. As words and as ranges.
#include "common/window_mask.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace gdpa::test {
namespace {

constexpr int groups = 24, columns = groups * 8;  // two words

/// The scores of all threads in 16 rows from `query` on, and in 16 rows from `key` on, compared with the mask.
template <class Fragment>
int count_wrong(const Mask& mask, int length_q, int length_k, int query, int key) {
  const WindowMask window{mask, length_q, length_k};
  const auto expected = [&](int64_t i, int64_t j) {
    if (i >= length_q || j >= length_k) return false;
    const Range keys = mask.keys({i, i + 1}, length_q, length_k);
    return j >= keys.begin && j < keys.end;
  };
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

}  // namespace
}  // namespace gdpa::test
