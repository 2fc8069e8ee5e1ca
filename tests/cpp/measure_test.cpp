// The median of measured times.
#include "measure.h"

#include <gtest/gtest.h>

#include <vector>

namespace gdpa::tool {
namespace {

TEST(Measure, TheMedianIsTheMiddleNumberOrTheMeanOfTheTwoInTheMiddle) {
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({9, 1, 4}), 4);
  EXPECT_EQ(median({1, 2, 4, 100}), 3);
  EXPECT_EQ(median({100, 4, 2, 1}), 3);
  EXPECT_EQ(median({5, 3, 3, 3, 9}), 3);
}

TEST(Measure, ACallIsTimedOnceWithoutTimeAndUntilTheTimeIsOverWithIt) {
  int calls = 0;
  EXPECT_EQ(time_calls([&] { ++calls; }, 0).size(), 1U);
  EXPECT_EQ(calls, 1);
  const std::vector<double> times = time_calls([&] { ++calls; }, 1e-4);
  EXPECT_EQ(static_cast<std::size_t>(calls), 1 + times.size());
}

}  // namespace
}  // namespace gdpa::tool
