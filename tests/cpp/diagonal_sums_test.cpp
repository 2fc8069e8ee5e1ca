// DiagonalSums adds up each diagonal of the terms of a warp, on the host.
#include "warp.h"
// after warp.h
#include "common/diagonal_sums.cuh"

#include <gtest/gtest.h>

#include <map>

namespace gdpa {
namespace {

TEST(DiagonalSums, AddUpEachDiagonalOnce) {
  constexpr int rows = 16, columns = 64;
  const auto term = [](int row, int column) { return static_cast<float>(row * 67 + column * column % 31 + 1); };
  std::map<int, float> expected, sums;
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) expected[column - row] += term(row, column);
  }
  warp::run(0, 1, 1, [&](unsigned lane) {
    float terms[32];
    for (int i = 0; i < 32; ++i) {
      const int row = static_cast<int>(lane / 4) + i / 2 % 2 * 8;
      terms[i] = term(row, i / 4 * 8 + static_cast<int>(lane % 4) * 2 + i % 2);
    }
    const DiagonalSums of_lane(terms);
    for (int i = 0; i < DiagonalSums::count; ++i) {
      const int diagonal = DiagonalSums::diagonal_of(i);
      if (diagonal < DiagonalSums::first || diagonal > DiagonalSums::last) {
        EXPECT_EQ(of_lane.sums[i], 0) << diagonal;
      } else {
        EXPECT_EQ(sums.count(diagonal), 0U) << diagonal;
        sums[diagonal] = of_lane.sums[i];
      }
    }
  });
  EXPECT_EQ(sums, expected);
}

}  // namespace
}  // namespace gdpa
