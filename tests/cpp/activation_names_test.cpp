// The named activations against formulas written independently in long double: values, derivatives, and no NaN or
// infinity where the true value is finite.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "expression/function.h"
#include "gdpa/activation.h"

namespace {

using gdpa::Activation;
using Real = long double;

constexpr double infinity = std::numeric_limits<double>::infinity();
const Real pi = std::acos(-1.0L);

struct Reference {
  Real (*value)(Real);
  Real (*slope)(Real);
  double at_minus_infinity;
  double slope_at_minus_infinity;
  double at_infinity;
  double slope_at_infinity;
};

Real logistic(Real s) { return 1 / (1 + std::exp(-s)); }
Real normal(Real s) { return std::erfc(-s / std::sqrt(2.0L)) / 2; }
Real gelu_argument(Real s) { return std::sqrt(2 / pi) * (s + 0.044715L * s * s * s); }

Real gelu_tanh_slope(Real s) {
  const Real u = gelu_argument(s);
  const Real inner = std::sqrt(2 / pi) * (1 + 3 * 0.044715L * s * s);
  // 1 - tanh^2 as 4 / (e^u + e^-u)^2, which does not cancel.
  const Real spread = std::exp(u) + std::exp(-u);
  const Real bell = std::fabs(u) > 5000 ? 0 : s / 2 * inner * 4 / (spread * spread);
  return logistic(2 * u) + bell;
}

// The formula of each name. An alias follows its original.
const std::map<std::string, Reference>& references() {
  static const Reference gelu_tanh = {
      [](Real s) { return s * logistic(2 * gelu_argument(s)); }, gelu_tanh_slope, 0, 0, infinity, 1};
  static const Reference silu = {[](Real s) { return s * logistic(s); },
                                 [](Real s) { return logistic(s) + s * logistic(s) * logistic(-s); },
                                 0,
                                 0,
                                 infinity,
                                 1};
  static const std::map<std::string, Reference> table = {
      {"identity", {[](Real s) { return s; }, [](Real) { return 1.0L; }, -infinity, 1, infinity, 1}},
      {"relu", {[](Real s) { return s > 0 ? s : 0; }, [](Real s) { return s > 0 ? 1.0L : 0.0L; }, 0, 0, infinity, 1}},
      {"relu2",
       {[](Real s) { return s > 0 ? s * s : 0; }, [](Real s) { return s > 0 ? 2 * s : 0; }, 0, 0, infinity, infinity}},
      {"leaky_relu",
       {[](Real s) { return s > 0 ? s : 0.01L * s; }, [](Real s) { return s > 0 ? 1.0L : 0.01L; }, -infinity, 0.01,
        infinity, 1}},
      {"gelu",
       {[](Real s) { return s * normal(s); },
        [](Real s) { return normal(s) + s * std::exp(-s * s / 2) / std::sqrt(2 * pi); }, 0, 0, infinity, 1}},
      {"gelu_tanh", gelu_tanh},
      {"fast_gelu", gelu_tanh},
      {"silu", silu},
      {"fast_silu", silu},
      {"hardswish",
       {[](Real s) { return s <= -3  ? 0
                            : s >= 3 ? s
                                     : s * (s + 3) / 6; },
        [](Real s) { return s < -3  ? 0
                            : s > 3 ? 1
                                    : (2 * s + 3) / 6; }, 0, 0, infinity, 1}},
      {"sigmoid", {logistic, [](Real s) { return logistic(s) * logistic(-s); }, 0, 0, 1, 0}},
      {"tanh",
       {[](Real s) { return std::tanh(s); },
        [](Real s) { return std::fabs(s) > 5000 ? 0 : 1 / (std::cosh(s) * std::cosh(s)); }, -1, 0, 1, 0}},
      {"softplus",
       {[](Real s) { return std::fmax(s, 0.0L) + std::log1p(std::exp(-std::fabs(s))); }, logistic, 0, 0, infinity, 1}},
  };
  return table;
}

// To a few rounding errors of the score's magnitude: f may be a small difference of terms as large as s.
void expect_close(const Activation& activation, double s) {
  const Reference& reference = references().at(activation.text());
  const double epsilon = std::numeric_limits<double>::epsilon();
  const double value = static_cast<double>(reference.value(s)), slope = static_cast<double>(reference.slope(s));
  const double scale = 1 + std::fmin(std::fabs(s), 50.0);
  ASSERT_NEAR(activation.value(s), value, 8 * epsilon * std::fmax(scale, std::fabs(value)))
      << activation.text() << " at " << s;
  ASSERT_NEAR(activation.derivative(s), slope, 8 * epsilon * std::fmax(scale * scale, std::fabs(slope)))
      << activation.text() << " at " << s;
}

class Named : public testing::TestWithParam<std::string> {};

TEST_P(Named, HasAReference) { EXPECT_EQ(references().count(GetParam()), 1u) << "add its formula to this test"; }

TEST_P(Named, FollowsItsFormulaFromMinusToPlusTenThousand) {
  const Activation activation(GetParam());
  for (int i = -20000; i <= 20000; ++i) expect_close(activation, i / 1000.0 + 1e-7);
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform(-1e4, 1e4);
  for (int i = 0; i < 20000; ++i) expect_close(activation, uniform(random));
}

TEST_P(Named, FollowsItsFormulaAtEveryMagnitude) {
  const Activation activation(GetParam());
  const Reference& reference = references().at(GetParam());
  for (int exponent = -1074; exponent < 1024; ++exponent) {
    for (const double s : {std::ldexp(1.0, exponent), -std::ldexp(1.0, exponent)}) {
      if (!std::isfinite(static_cast<double>(reference.value(s)))) continue;  // relu2 leaves fp64
      expect_close(activation, s);
    }
  }
  const double largest = std::numeric_limits<double>::max();
  EXPECT_EQ(activation.derivative(largest),
            reference.slope_at_infinity == infinity ? infinity : reference.slope_at_infinity);
}

TEST_P(Named, IsExactlyZeroAtZeroWhereItsFormulaIs) {
  EXPECT_EQ(Activation(GetParam()).value(0) == 0, references().at(GetParam()).value(0) == 0);
}

TEST_P(Named, HasItsLimitsAtInfinityAndKeepsNaN) {
  const Activation activation(GetParam());
  const Reference& reference = references().at(GetParam());
  EXPECT_EQ(activation.value(-infinity), reference.at_minus_infinity);
  EXPECT_EQ(activation.value(infinity), reference.at_infinity);
  EXPECT_EQ(activation.derivative(-infinity), reference.slope_at_minus_infinity);
  EXPECT_EQ(activation.derivative(infinity), reference.slope_at_infinity);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(activation.value(nan)));
  const bool is_piecewise_linear = GetParam() == "identity" || GetParam() == "relu" || GetParam() == "leaky_relu";
  if (is_piecewise_linear) {
    EXPECT_TRUE(std::isfinite(activation.derivative(nan)));  // a constant of one of the pieces
  } else {
    EXPECT_TRUE(std::isnan(activation.derivative(nan)));
  }
}

// Every step costs about 3 % on a GPU: a rule that adds one to a function shows here.
TEST_P(Named, CostsNoMoreStepsThanItDid) {
  const std::map<std::string, std::pair<std::size_t, std::size_t>> most = {
      {"identity", {0, 0}},  {"relu", {1, 3}},       {"relu2", {2, 3}},      {"leaky_relu", {3, 4}},
      {"gelu", {6, 13}},     {"gelu_tanh", {8, 15}}, {"fast_gelu", {8, 15}}, {"silu", {3, 7}},
      {"fast_silu", {3, 7}}, {"hardswish", {6, 12}}, {"sigmoid", {1, 3}},    {"tanh", {1, 3}},
      {"softplus", {1, 2}},
  };
  const auto arithmetic = [](const gdpa::activation::Program& program) {
    std::size_t count = 0;
    for (const gdpa::activation::Step& step : program.steps) {
      count += step.operation != gdpa::activation::Operation::constant &&
               step.operation != gdpa::activation::Operation::score;
    }
    return count;
  };
  const Activation activation(GetParam());
  EXPECT_LE(arithmetic(activation.function().value()), most.at(GetParam()).first);
  EXPECT_LE(arithmetic(activation.function().value_and_derivative()), most.at(GetParam()).second);
}

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const auto& row : gdpa::named_activations()) result.push_back(row.name);
  return result;
}

INSTANTIATE_TEST_SUITE_P(Table, Named, testing::ValuesIn(names()), [](const auto& test) { return test.param; });

TEST(NamedTable, HoldsTheNamesThatAreDocumented) {
  const std::vector<std::string> expected = {"identity",  "relu",      "relu2",   "leaky_relu", "gelu",
                                             "gelu_tanh", "fast_gelu", "silu",    "fast_silu",  "hardswish",
                                             "sigmoid",   "tanh",      "softplus"};
  EXPECT_EQ(names(), expected);
}

TEST(NamedTable, EveryRowIsAnExpressionOfTheLanguage) {
  for (const auto& row : gdpa::named_activations()) {
    EXPECT_FALSE(row.source.empty());
    const Activation by_name(row.name), by_expression(row.expression);
    for (const double s : {-infinity, -2.5, -0.0, 0.7, 3.0, infinity}) {
      EXPECT_EQ(by_name.value(s), by_expression.value(s)) << row.name;
      EXPECT_EQ(by_name.derivative(s), by_expression.derivative(s)) << row.name;
    }
  }
}

}  // namespace
