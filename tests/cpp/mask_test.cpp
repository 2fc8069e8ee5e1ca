// Mask's ranges and its test for full tiles agree, on every small problem, with its definition pair by pair.
#include "gdpa/mask.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace gdpa {
namespace {

/// The definition, as the documentation of Mask states it.
bool attends(const Mask& mask, int64_t i, int64_t j, int64_t length_q, int64_t length_k) {
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

/// The smallest range of [0, count) that holds every index for which `valid` is true.
template <class Valid>
Range hull(int64_t count, const Valid& valid) {
  Range range{0, 0};
  for (int64_t i = 0; i < count; ++i) {
    if (!valid(i)) continue;
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
                           any = any || attends(mask, i, j, length_q, length_k);
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
                           any = any || attends(mask, i, j, length_q, length_k);
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
        EXPECT_EQ(keys.begin <= j && j < keys.end, attends(mask, i, j, length_q, length_k));
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
          for (int64_t j = keys.begin; j < keys.end; ++j) all = all && attends(mask, i, j, length_q, length_k);
        }
        EXPECT_EQ(mask.is_full(queries, keys, length_q, length_k), all);
      });
    });
  });
}

/// The definition in 128 bits, where no sum overflows.
bool meets_in_128_bits(const Mask& mask, int64_t i, int64_t j, int64_t length_q, int64_t length_k) {
  __extension__ using Wide = __int128;
  const Wide diagonal = Wide{i} + (mask.diagonal == Diagonal::bottom_right ? Wide{length_k} - length_q : Wide{0});
  return (mask.left < 0 || diagonal - mask.left <= j) && (mask.right < 0 || j <= diagonal + mask.right);
}

TEST(Mask, sides_over_the_whole_range_of_int64_follow_the_definition) {
  std::mt19937_64 random(1);
  constexpr int64_t largest = std::numeric_limits<int64_t>::max();
  const auto draw_side = [&]() -> int64_t {
    const auto bits = static_cast<int64_t>(random() >> 1);
    switch (random() % 5) {
      case 0:
        return -1;
      case 1:
        return largest - bits % 40;
      case 2:
        return bits % 40;
      default:
        return bits >> (random() % 63);
    }
  };
  for (int repetition = 0; repetition < 20000; ++repetition) {
    const Mask mask{draw_side(), draw_side(), random() % 2 == 0 ? Diagonal::bottom_right : Diagonal::upper_left};
    const auto length_q = static_cast<int64_t>(random() % 12), length_k = static_cast<int64_t>(random() % 12);
    const auto of_pair = [&](int64_t i, int64_t j) { return meets_in_128_bits(mask, i, j, length_q, length_k); };
    for (int64_t i = 0; i < length_q; ++i) {
      expect_same(mask.keys({i, i + 1}, length_q, length_k), hull(length_k, [&](int64_t j) { return of_pair(i, j); }),
                  "keys");
      for (int64_t j = 0; j < length_k; ++j) {
        ASSERT_EQ(mask.is_full({i, i + 1}, {j, j + 1}, length_q, length_k), of_pair(i, j))
            << "left " << mask.left << " right " << mask.right;
      }
    }
    for (int64_t j = 0; j < length_k; ++j) {
      expect_same(mask.queries({j, j + 1}, length_q, length_k),
                  hull(length_q, [&](int64_t i) { return of_pair(i, j); }), "queries");
    }
  }
}

/// The keys of a range of queries, from the definition in 128 bits.
Range keys_in_128_bits(const Mask& mask, Range queries, int64_t length_q, int64_t length_k) {
  __extension__ using Wide = __int128;
  if (queries.empty()) return {};
  const Wide shift = mask.diagonal == Diagonal::bottom_right ? Wide{length_k} - length_q : Wide{0};
  const Wide begin = mask.left < 0 ? Wide{0} : std::max<Wide>(0, queries.begin + shift - mask.left);
  const Wide end = mask.right < 0 ? Wide{length_k} : std::min<Wide>(length_k, queries.end + shift + mask.right);
  return begin < end ? Range{static_cast<int64_t>(begin), static_cast<int64_t>(end)} : Range{};
}

TEST(Mask, sides_and_lengths_of_any_size_follow_the_definition) {
  std::mt19937_64 random(2);
  const auto up_to = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  const auto with_bits = [&](int64_t most_bits) { return up_to((int64_t{1} << up_to(most_bits)) - 1); };
  const auto side = [&] {
    const int64_t small = with_bits(62);
    return up_to(3) == 0 ? int64_t{-1} : up_to(1) == 0 ? small : std::numeric_limits<int64_t>::max() - small;
  };
  const auto range = [&](int64_t length) {
    const int64_t one = up_to(length), other = up_to(length);
    return Range{std::min(one, other), std::max(one, other)};
  };
  for (int repetition = 0; repetition < 100000; ++repetition) {
    const Mask mask{side(), side(), up_to(1) == 0 ? Diagonal::bottom_right : Diagonal::upper_left};
    // Lengths of GPU kernels, and lengths that only the host can describe.
    const int64_t bits = repetition % 2 == 0 ? 31 : 61;
    const int64_t length_q = with_bits(bits), length_k = with_bits(bits);
    const Range queries = range(length_q), keys = range(length_k);
    expect_same(mask.keys(queries, length_q, length_k), keys_in_128_bits(mask, queries, length_q, length_k), "keys");
    const Mask transposed{mask.right, mask.left, mask.diagonal};
    expect_same(mask.queries(keys, length_q, length_k), keys_in_128_bits(transposed, keys, length_k, length_q),
                "queries");
    if (queries.empty() || keys.empty()) continue;
    // The two pairs that are furthest from the diagonal, one on each side.
    const bool all = meets_in_128_bits(mask, queries.end - 1, keys.begin, length_q, length_k) &&
                     meets_in_128_bits(mask, queries.begin, keys.end - 1, length_q, length_k);
    ASSERT_EQ(mask.is_full(queries, keys, length_q, length_k), all)
        << "left " << mask.left << " right " << mask.right << " lengths " << length_q << ' ' << length_k;
  }
}

TEST(Mask, lengths_near_the_largest_integer_do_not_overflow_without_bounds) {
  const int64_t length = int64_t{1} << 62;
  expect_same(Mask::all().keys({0, length}, length, length), {0, length}, "all");
  expect_same(Mask::causal().keys({0, length}, length, length), {0, length}, "causal");
}

}  // namespace
}  // namespace gdpa
