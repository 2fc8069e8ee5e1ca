// Intervals enclose the results of a program, on both sides of every score, and the derivative of its definition.
#include "expression/rewrite/interval.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "expression/function.h"
#include "expression/lower.h"
#include "expression/rewrite/forms.h"
#include "gdpa/activation.h"

namespace gdpa::activation {
namespace {

const char* const expressions[] = {"gelu",
                                   "gelu_tanh",
                                   "silu",
                                   "relu",
                                   "softplus",
                                   "exp(s)",
                                   "sin(20 * s)",
                                   "cos(s) / (2 + s^2)",
                                   "s^3 - s",
                                   "abs(s) / (1 + abs(s))",
                                   "log1p(s * s)",
                                   "sqrt(abs(s))",
                                   "where(s > 1, s, s^2)",
                                   "clamp(s, -1, 2) * s",
                                   "s * exp(-s * s)",
                                   "1 / s",
                                   "expm1(min(s, 1)) * sign(s)",
                                   "erf(s) - 2^s",
                                   "max(s, -s, 0.5)"};

template <class Real>
void expect_enclosed(const std::string& text, const Program& program) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> exponent(-30, 30), part(0, 1);
  for (int repetition = 0; repetition < 300; ++repetition) {
    const double center = std::copysign(std::exp2(exponent(random)), part(random) - 0.5);
    const auto low = static_cast<Real>(center), high = static_cast<Real>(center + std::fabs(center) * part(random));
    const std::vector<Interval<Real>> enclosed = enclose<Real>(program, {low, high});
    for (int i = 0; i <= 8; ++i) {
      const Real score = std::clamp(low + (high - low) * static_cast<Real>(i) / 8, low, high);
      std::vector<double> results;
      if constexpr (std::is_same_v<Real, float>) {
        for (const float result : evaluate_in_fp32(program, score)) results.push_back(double{result});
      } else {
        results = evaluate(program, score);
      }
      for (std::size_t r = 0; r < results.size(); ++r) {
        if (std::isnan(results[r])) {
          EXPECT_TRUE(enclosed[r].may_be_nan) << text << " at " << score;
        } else {
          EXPECT_LE(enclosed[r].low, results[r]) << text << " at " << score;
          EXPECT_GE(enclosed[r].high, results[r]) << text << " at " << score;
        }
      }
    }
  }
}

TEST(Intervals, EncloseWhatAProgramComputesInEachPrecision) {
  for (const char* text : expressions) {
    const Program program = Activation(text).function().value_and_derivative();
    expect_enclosed<double>(text, program);
    expect_enclosed<float>(text, program);
  }
}

TEST(Intervals, EncloseTheDerivativeOfTheDefinition) {
  for (const char* text : expressions) {
    const Activation activation(text);
    std::mt19937_64 random(11);
    std::uniform_real_distribution<double> exponent(-12, 6), part(0, 1);
    for (int repetition = 0; repetition < 300; ++repetition) {
      const double low = std::copysign(std::exp2(exponent(random)), part(random) - 0.5);
      // Wide intervals too, which contain the kinks.
      const double high = low + std::fabs(low) * part(random) * (repetition % 2 == 0 ? 0.1 : 3.0);
      const ValueAndSlope enclosed = enclose_derivative(activation.function().value(), {low, high});
      for (const double score : {low, (low + high) / 2, high}) {
        const double slope = activation.derivative(score), rounding = 1e-9 * std::fabs(slope) + 1e-13;
        if (!std::isfinite(slope)) continue;
        EXPECT_LE(enclosed.slope.low, slope + rounding) << text << " at " << score;
        EXPECT_GE(enclosed.slope.high, slope - rounding) << text << " at " << score;
      }
    }
  }
}

TEST(Intervals, OfAProductMayBeNaNIfOneFactorMayBeZeroAndTheOtherInfinite) {
  for (const char* text : {"exp(s) * (s - 800)", "(s - 800) * exp(s)", "exp(s) * (800 - s)"}) {
    EXPECT_TRUE(enclose<double>(Activation(text).function().value(), {790, 810})[0].may_be_nan) << text;
    EXPECT_FALSE(enclose<double>(Activation(text).function().value(), {790, 799})[0].may_be_nan) << text;
  }
  Program of_inputs;
  of_inputs.steps = {{.operation = Operation::input, .number = 0},
                     {.operation = Operation::input, .number = 1},
                     {.operation = Operation::multiply, .a = 0, .b = 1}};
  of_inputs.results = {2};
  const double infinity = std::numeric_limits<double>::infinity();
  const Interval<double> has_zero{-1, 1, false}, has_infinity{1, infinity, false}, has_neither{1, 2, false};
  EXPECT_TRUE(enclose_outward(of_inputs, {has_zero, has_infinity}).may_be_nan);
  EXPECT_TRUE(enclose_outward(of_inputs, {has_infinity, has_zero}).may_be_nan);
  EXPECT_FALSE(enclose_outward(of_inputs, {has_zero, has_neither}).may_be_nan);
  EXPECT_FALSE(enclose_outward(of_inputs, {has_infinity, has_neither}).may_be_nan);
}

TEST(Intervals, OfAComparisonContainFalseIfAnOperandMayBeNaN) {
  // The sine is between -1 and 1, or NaN for an infinite score.
  for (const char* condition : {"sin(s) < 2", "sin(s) <= 2", "-2 < sin(s)", "-2 <= sin(s)", "0 * sin(s) == 0"}) {
    const Program program = Activation("where(" + std::string(condition) + ", 1, 0)").function().value();
    const Interval<double> enclosed = enclose<double>(program, {0, std::numeric_limits<double>::infinity()})[0];
    EXPECT_EQ(enclosed.low, 0) << condition;
    EXPECT_EQ(enclosed.high, 1) << condition;
  }
}

TEST(Intervals, TellTheSignOfAZero) {
  const Program product = Activation("s * relu(-s)").function().value();
  const Interval<double> zero = enclose<double>(product, {1.0, 2.0})[0];
  EXPECT_EQ(zero.low, 0);
  EXPECT_EQ(zero.high, 0);
  EXPECT_EQ(std::signbit(zero.low), std::signbit(evaluate(product, 1.5)[0]));
}

TEST(RoundedQuery, IsToleratedWhereTheFunctionGrowsWithTheScoreAndIsSteepNowhere) {
  for (const char* text : {"gelu", "gelu_tanh", "silu", "s * tanh(softplus(s))", "hardswish", "softplus", "identity",
                           "leaky_relu", "s * sigmoid(1.702 * s)", "gelu(s) + 0.1 * s", "where(s > 0, s, expm1(s))"}) {
    EXPECT_TRUE(tolerates_rounded_query(Activation(text).function().value())) << text;
  }
}

TEST(RoundedQuery, IsNotToleratedWhereTheFunctionIsSteepOrBounded) {
  for (const char* text :
       {"s * exp(-s * s)", "exp(s)", "sin(s)", "tanh(s)", "sigmoid(20 * s)", "sigmoid(s)", "s^2", "1 / s",
        "sqrt(abs(s))", "silu(s) + 0.01 * sin(1000 * s)", "where(s > 3, 10 * (s - 3), silu(s))", "log1p(abs(s))",
        "silu(s) + 100 * max(0, 1e-3 - abs(s - 100.2))"}) {
    EXPECT_FALSE(tolerates_rounded_query(Activation(text).function().value())) << text;
  }
}

}  // namespace
}  // namespace gdpa::activation
