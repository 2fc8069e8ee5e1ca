// The error that `gdpa run` and `gdpa doctor` report for a result: in the 2-norm, as a part of the norm of the result,
// or of the terms of a sum that cancel.
#include "errors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace gdpa::tool {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

TEST(RelativeError, IsThatOfTheTwoNorms) {
  EXPECT_DOUBLE_EQ(relative_error({3, 4}, {3, 4}), 0);
  EXPECT_DOUBLE_EQ(relative_error({3.5, 4}, {3, 4}), 0.1);
  EXPECT_DOUBLE_EQ(relative_error({3 + 3, 4 + 4}, {3, 4}), 1) << "of all elements";
  EXPECT_DOUBLE_EQ(relative_error({-3, -4}, {3, 4}), 2);
}

/// 100 terms of 1 and -1 have the sum 0, and a rounding error of 1e-7 in each of them is a small error.
TEST(RelativeError, OfASumWhoseTermsCancelIsAPartOfTheNormOfTheTerms) {
  constexpr double squares = 100;
  EXPECT_DOUBLE_EQ(relative_error({1e-6}, {0}, squares), 1e-7);
  EXPECT_DOUBLE_EQ(relative_error({1e-6}, {1e-9}, squares), (1e-6 - 1e-9) / 10);
  EXPECT_DOUBLE_EQ(relative_error({5}, {0}, squares), 0.5) << "and a large error stays one";
  EXPECT_DOUBLE_EQ(relative_error({3.5, 4}, {3, 4}, 1), 0.1) << "the norm of the result is the larger one";
  EXPECT_DOUBLE_EQ(relative_error({3.5, 4}, {3, 4}, 100), 0.05) << "the norm of the terms is the larger one";
}

TEST(RelativeError, OfZerosIsAbsolute) {
  EXPECT_EQ(relative_error({0, 0}, {0, 0}), 0);
  EXPECT_DOUBLE_EQ(relative_error({3, 4}, {0, 0}), 5);
  EXPECT_EQ(relative_error({}, {}), 0);
}

TEST(RelativeError, OfAResultThatIsNotFiniteIsNoSmallNumber) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(relative_error({nan, 4}, {3, 4})));
  EXPECT_TRUE(std::isnan(relative_error({3, nan}, {3, 4}, 100)));
  EXPECT_FALSE(std::signbit(relative_error({-nan, 4}, {3, 4}))) << "a minus sign before NaN would be printed";
  EXPECT_EQ(relative_error({infinity, 4}, {3, 4}), infinity);
}

TEST(PromisedError, IsThatOfTheDocumentation) {
  EXPECT_EQ(promised_error(DType::float64), 1e-13);
  EXPECT_EQ(promised_error(DType::float32), 2e-6);
  EXPECT_EQ(promised_error(DType::float32, true), 6e-4) << "with tf32";
  EXPECT_EQ(promised_error(DType::float16), 6e-4);
  EXPECT_EQ(promised_error(DType::bfloat16), 3e-3);
}

}  // namespace
}  // namespace gdpa::tool
