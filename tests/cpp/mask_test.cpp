// Mask's ranges and its test for full tiles agree, on every small problem, with its definition pair by pair.
#include "gdpa/mask.h"

#include <gtest/gtest.h>

#include <vector>

namespace gdpa {
namespace {

/// The definition, as the documentation of Mask states it.
bool meets(const Mask& mask, int64_t i, int64_t j, int64_t length_q, int64_t length_k) {
  const int64_t shift = mask.diagonal == Diagonal::bottom_right ? length_k - length_q : 0;
  return (mask.left < 0 || i + shift - mask.left <= j) && (mask.right < 0 || j <= i + shift + mask.right);
}

/// Calls body(mask, length_q, length_k) for windows and lengths around every edge, both diagonals.
template <class Body>
void for_each_problem(const Body& body) {
  const std::vector<int64_t> sides = {-1, 0, 1, 2, 5, 20};
  for (Diagonal diagonal : {Diagonal::bottom_right, Diagonal::upper_left}) {
    for (int64_t left : sides) {
      for (int64_t right : sides) {
        for (int64_t length_q = 0; length_q <= 7; ++length_q) {
          for (int64_t length_k = 0; length_k <= 7; ++length_k) {
            body(Mask{left, right, diagonal}, length_q, length_k);
          }
        }
      }
    }
  }
}

template <class Body>
void for_each_range(int64_t length, const Body& body) {
  for (int64_t begin = 0; begin <= length; ++begin) {
    for (int64_t end = begin; end <= length; ++end) body(Range{begin, end});
  }
}

/// The smallest range of [0, count) that holds every index for which `kept` is true.
template <class Kept>
Range hull(int64_t count, const Kept& kept) {
  Range range{0, 0};
  for (int64_t i = 0; i < count; ++i) {
    if (!kept(i)) continue;
    if (range.empty()) range.begin = i;
    range.end = i + 1;
  }
  return range;
}

void expect_same(Range actual, Range expected, const char* what) {
  if (actual.empty() && expected.empty()) return;
  EXPECT_EQ(actual.begin, expected.begin) << what;
  EXPECT_EQ(actual.end, expected.end) << what;
}

TEST(Mask, keys_of_queries_are_those_that_one_of_them_meets) {
  for_each_problem([](const Mask& mask, int64_t length_q, int64_t length_k) {
    for_each_range(length_q, [&](Range queries) {
      expect_same(mask.keys(queries, length_q, length_k),
                  hull(length_k,
                       [&](int64_t j) {
                         bool any = false;
                         for (int64_t i = queries.begin; i < queries.end; ++i)
                           any = any || meets(mask, i, j, length_q, length_k);
                         return any;
                       }),
                  "keys");
    });
  });
}

TEST(Mask, queries_of_keys_are_those_that_meet_one_of_them) {
  for_each_problem([](const Mask& mask, int64_t length_q, int64_t length_k) {
    for_each_range(length_k, [&](Range keys) {
      expect_same(mask.queries(keys, length_q, length_k),
                  hull(length_q,
                       [&](int64_t i) {
                         bool any = false;
                         for (int64_t j = keys.begin; j < keys.end; ++j)
                           any = any || meets(mask, i, j, length_q, length_k);
                         return any;
                       }),
                  "queries");
    });
  });
}

TEST(Mask, the_keys_of_one_query_are_exactly_those_that_it_meets) {
  for_each_problem([](const Mask& mask, int64_t length_q, int64_t length_k) {
    for (int64_t i = 0; i < length_q; ++i) {
      const Range keys = mask.keys({i, i + 1}, length_q, length_k);
      for (int64_t j = 0; j < length_k; ++j) {
        EXPECT_EQ(keys.begin <= j && j < keys.end, meets(mask, i, j, length_q, length_k));
      }
    }
  });
}

TEST(Mask, a_full_tile_has_every_pair) {
  for_each_problem([](const Mask& mask, int64_t length_q, int64_t length_k) {
    for_each_range(length_q, [&](Range queries) {
      for_each_range(length_k, [&](Range keys) {
        if (queries.empty() || keys.empty()) return;
        bool all = true;
        for (int64_t i = queries.begin; i < queries.end; ++i) {
          for (int64_t j = keys.begin; j < keys.end; ++j) all = all && meets(mask, i, j, length_q, length_k);
        }
        EXPECT_EQ(mask.is_full(queries, keys, length_q, length_k), all);
      });
    });
  });
}

TEST(Mask, lengths_near_the_largest_integer_do_not_overflow_without_bounds) {
  const int64_t length = int64_t{1} << 62;
  expect_same(Mask::all().keys({0, length}, length, length), {0, length}, "all");
  expect_same(Mask::causal().keys({0, length}, length, length), {0, length}, "causal");
}

}  // namespace
}  // namespace gdpa
