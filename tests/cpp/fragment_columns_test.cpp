// The valid scores of a row of an accumulator: bounds of columns as words and as ranges, and the scores of a thread.
#include "common/fragment_columns.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace gdpa::test {
namespace {

/// The column of a bit, by the layout of an accumulator.
int64_t column_of(int origin, int bit) { return int64_t{origin} + bit / 2 * 8 + bit % 2; }

template <class Holds>
unsigned word_of(int origin, Holds holds) {
  unsigned word = 0;
  for (int bit = 0; bit < 32; ++bit) {
    if (holds(column_of(origin, bit))) word |= 1U << bit;
  }
  return word;
}

template <class Bound>
void expect_bounds(int origin, Bound bound) {
  const FragmentColumns columns{origin};
  SCOPED_TRACE(testing::Message() << "origin " << origin << ", bound " << bound);
  EXPECT_EQ(columns.below(bound), word_of(origin, [&](int64_t column) { return column < bound; }));
  EXPECT_EQ(columns.up_to(bound), word_of(origin, [&](int64_t column) { return column <= bound; }));
  EXPECT_EQ(columns.from(bound), word_of(origin, [&](int64_t column) { return column >= bound; }));
  EXPECT_EQ(columns.after(bound), word_of(origin, [&](int64_t column) { return column > bound; }));
}

/// Every range of a bound selects the columns of the word of the bound.
template <class Bound>
void expect_ranges(int origin, Bound bound) {
  const FragmentColumns columns{origin};
  const auto word = [&](const ColumnRange& range) {
    const ValidRange valid = (range & ColumnRange{0, std::numeric_limits<int>::max()}).counted_from(origin);
    const unsigned of_range =
        word_of(origin, [&](int64_t column) { return valid.holds(static_cast<int>(column - origin)); });
    EXPECT_EQ(columns.in(range), of_range);
    return of_range;
  };
  SCOPED_TRACE(testing::Message() << "origin " << origin << ", bound " << bound);
  EXPECT_EQ(word(AllColumns::below(bound)), columns.below(bound));
  EXPECT_EQ(word(AllColumns::up_to(bound)), columns.up_to(bound));
  EXPECT_EQ(word(AllColumns::from(bound)), columns.from(bound));
  EXPECT_EQ(word(AllColumns::after(bound)), columns.after(bound));
  EXPECT_EQ(word(AllColumns::from(bound) & AllColumns::below(bound + 5)),
            columns.from(bound) & columns.below(bound + 5));
  EXPECT_EQ(word(AllColumns::from(bound) & AllColumns::below(bound - 5)), 0U);
  EXPECT_EQ(word(AllColumns::from(bound) & AllColumns::all_if(false)), 0U);
  EXPECT_EQ(word(AllColumns::from(bound) & AllColumns::all_if(true)), columns.from(bound));
}

TEST(FragmentRanges, SelectTheColumnsOfTheWords) {
  for (const int origin : {0, 2, 6, 128, 4096}) {
    for (int bound = -10; bound <= 300; ++bound) {
      expect_ranges(origin, bound);
      expect_ranges(origin, static_cast<long long>(bound));
    }
    for (const long long bound : {-(1LL << 40), -(1LL << 31), (1LL << 31) - 1, 1LL << 31, 1LL << 40}) {
      expect_ranges(origin, bound);
    }
    expect_ranges(origin, std::numeric_limits<int>::max() - 5);
    EXPECT_EQ(AllColumns::up_to(std::numeric_limits<int>::max()).end, std::numeric_limits<int>::max());
  }
}

TEST(FragmentColumns, ABoundSelectsTheColumnsOnItsSide) {
  for (const int origin : {0, 2, 6, 128, 4096, 0x7ffe0000}) {
    for (int from_origin = -10; from_origin <= 140; ++from_origin) {
      expect_bounds(origin, origin + from_origin);
      expect_bounds(origin, static_cast<long long>(origin) + from_origin);
    }
  }
}

TEST(FragmentColumns, BoundsMayBeAnyNumbers) {
  using Int = std::numeric_limits<int>;
  using Int64 = std::numeric_limits<long long>;
  for (const int origin : {0, 2, 1 << 20}) {
    for (const int bound : {Int::min(), Int::min() + 1, -1, Int::max() - 1, Int::max()}) expect_bounds(origin, bound);
    for (const long long bound : {Int64::min(), -(1LL << 40), static_cast<long long>(Int::min()) - 1,
                                  static_cast<long long>(Int::max()) + 1, 1LL << 40, Int64::max()}) {
      expect_bounds(origin, bound);
    }
  }
}

TEST(FragmentColumns, VisitsEachColumnOfTheFirstGroupsOnce) {
  const auto visited = [](const auto& visit) {
    unsigned bits = 0;
    visit([&](int column, unsigned bit) {
      EXPECT_EQ(bits & bit, 0U);
      bits |= bit;
      EXPECT_EQ(word_of(6, [&](int64_t at) { return at == column; }), bit);
    });
    return bits;
  };
  const FragmentColumns columns{6};
  EXPECT_EQ(visited([&](auto visit) { columns.visit<16, 4>(visit); }), ~0U);
  EXPECT_EQ(visited([&](auto visit) { columns.visit<8, 2>(visit); }), 0xffffU);
  EXPECT_EQ(visited([&](auto visit) { columns.visit<2, 1>(visit); }), 0xfU);
}

TEST(FragmentWords, HoldTheScoresOfTwoRowsByTheirPlaceInTheAccumulator) {
  constexpr int groups = 24, origin = 4;  // two words
  const auto is_valid = [](int half, int64_t column) { return (column * 7 + half * 3) % 5 < 2; };
  const auto words = FragmentWords<groups>::of(origin, [&](const FragmentColumns& columns, unsigned(&valid)[2]) {
    for (int half = 0; half < 2; ++half) {
      valid[half] = word_of(columns.origin, [&](int64_t column) { return is_valid(half, column); });
    }
  });
  for (int half = 0; half < 2; ++half) {
    for (int group = 0; group < groups; ++group) {
      for (int i = 0; i < 2; ++i) EXPECT_EQ(words.holds(half, group * 8 + i), is_valid(half, origin + group * 8 + i));
    }
  }
}

}  // namespace
}  // namespace gdpa::test
