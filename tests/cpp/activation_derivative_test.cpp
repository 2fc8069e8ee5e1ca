// The symbolic derivative against an independent one: dual numbers in long double, and hand-written formulas.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "expression/function.h"
#include "expression/lower.h"
#include "expression/parser.h"
#include "gdpa/activation.h"

namespace {

using gdpa::Activation;
using Real = long double;

constexpr double infinity = std::numeric_limits<double>::infinity();

// A value with its derivative, carried through each operation; `largest` is the greatest magnitude met on the way,
// which says how much rounding may have cost.
struct Dual {
  Real value = 0;
  Real slope = 0;
  Real largest = 0;
};

Dual chain(const Dual& x, Real value, Real partial) {
  return {value, partial * x.slope, std::max({x.largest, std::fabs(value), std::fabs(partial * x.slope)})};
}

Dual combine(const Dual& x, const Dual& y, Real value, Real slope) {
  return {value, slope, std::max({x.largest, y.largest, std::fabs(value), std::fabs(slope)})};
}

/// An expression written at random, together with its value and derivative at one score.
class RandomExpression {
 public:
  explicit RandomExpression(unsigned seed) : random_(seed) {}

  std::string text(int depth) { return node(depth); }
  Dual at(Real s) {
    score_ = s;
    next_ = 0;
    return evaluate();
  }

 private:
  // The expression in prefix order: an operation's number, or a leaf.
  struct Item {
    int operation;
    Real number;
  };
  enum { score = 100, constant = 101 };

  int draw(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }

  std::string node(int depth) {
    if (depth == 0 || draw(6) == 0) return leaf();
    const int operation = draw(24);
    items_.push_back({operation, 0});
    const std::size_t own = items_.size() - 1;
    const auto next = [&] { return node(depth - 1); };
    const auto both = [&](const std::string& sign) {
      const std::string left = next();
      return "(" + left + " " + sign + " " + next() + ")";
    };
    const auto call = [&](const std::string& name) { return name + "(" + next() + ")"; };
    switch (operation) {
      case 0:
        return both("+");
      case 1:
        return both("-");
      case 2:
      case 3:
        return both("*");
      case 4: {
        const std::string above = next();
        return above + " / (1.5 + (" + next() + ")^2)";
      }
      case 5:
        return "(" + next() + ")^3";
      case 6:
        return "-" + call("");
      case 7:
        return call("abs");
      case 8:
        return "sqrt(0.5 + abs(" + next() + "))";
      case 9:
        return "rsqrt(0.5 + abs(" + next() + "))";
      case 10:
        return "exp(-abs(" + next() + "))";
      case 11:
        return "exp2(tanh(" + next() + "))";
      case 12:
        return "expm1(sin(" + next() + "))";
      case 13:
        return "log(0.5 + abs(" + next() + "))";
      case 14:
        return "log1p(abs(" + next() + "))";
      case 15:
        return call("tanh");
      case 16:
        return call("sigmoid");
      case 17:
        return call("erf");
      case 18:
        return call("softplus");
      case 19:
        return call("cos");
      case 20: {
        const std::string left = next();
        return "max(" + left + ", " + next() + ")";
      }
      case 21:
        return "clamp(" + next() + ", -0.51, 0.73)";
      case 22:
        return "(1.25 + sin(" + next() + "))^2.3";
      default: {
        const Real bound = draw(200) / 100.0L - 1.0L + 0.003L;
        items_[own].number = bound;
        const std::string a = next();
        return "where(s < " + number(bound) + ", " + a + ", " + next() + ")";
      }
    }
  }

  std::string leaf() {
    if (draw(3) > 0) {
      items_.push_back({score, 0});
      return "s";
    }
    const Real value = (draw(400) + 7) / 100.0L;
    items_.push_back({constant, value});
    return number(value);
  }

  static std::string number(Real value) {
    char digits[40];
    std::snprintf(digits, sizeof digits, "%.3Lf", value);
    return value < 0 ? "(" + std::string(digits) + ")" : digits;
  }

  static Real sign(Real x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }
  static Dual absolute(const Dual& x) { return chain(x, std::fabs(x.value), sign(x.value)); }
  static Dual shifted(const Dual& x, Real by) { return chain(x, x.value + by, 1); }

  Dual evaluate() {
    const Item item = items_[next_++];
    if (item.operation == score) return {score_, 1, std::fabs(score_)};
    if (item.operation == constant) return {item.number, 0, item.number};
    const Dual x = evaluate();
    const Real v = x.value;
    switch (item.operation) {
      case 0: {
        const Dual y = evaluate();
        return combine(x, y, v + y.value, x.slope + y.slope);
      }
      case 1: {
        const Dual y = evaluate();
        return combine(x, y, v - y.value, x.slope - y.slope);
      }
      case 2:
      case 3: {
        const Dual y = evaluate();
        return combine(x, y, v * y.value, x.slope * y.value + v * y.slope);
      }
      case 4: {
        const Dual y = evaluate();
        const Real below = 1.5L + y.value * y.value;
        return combine(x, y, v / below, x.slope / below - v * 2 * y.value * y.slope / (below * below));
      }
      case 5:
        return chain(x, v * v * v, 3 * v * v);
      case 6:
        return chain(x, -v, -1);
      case 7:
        return absolute(x);
      case 8: {
        const Dual y = shifted(absolute(x), 0.5L);
        return chain(y, std::sqrt(y.value), 0.5L / std::sqrt(y.value));
      }
      case 9: {
        const Dual y = shifted(absolute(x), 0.5L);
        return chain(y, 1 / std::sqrt(y.value), -0.5L * std::pow(y.value, -1.5L));
      }
      case 10: {
        const Dual y = absolute(x);
        return chain(y, std::exp(-y.value), -std::exp(-y.value));
      }
      case 11: {
        const Dual y = chain(x, std::tanh(v), 1 / (std::cosh(v) * std::cosh(v)));
        return chain(y, std::exp2(y.value), std::log(2.0L) * std::exp2(y.value));
      }
      case 12: {
        const Dual y = chain(x, std::sin(v), std::cos(v));
        return chain(y, std::expm1(y.value), std::exp(y.value));
      }
      case 13: {
        const Dual y = shifted(absolute(x), 0.5L);
        return chain(y, std::log(y.value), 1 / y.value);
      }
      case 14: {
        const Dual y = absolute(x);
        return chain(y, std::log1p(y.value), 1 / (1 + y.value));
      }
      case 15:
        return chain(x, std::tanh(v), 1 / (std::cosh(v) * std::cosh(v)));
      case 16:
        return chain(x, 1 / (1 + std::exp(-v)), 1 / (2 + std::exp(v) + std::exp(-v)));
      case 17:
        return chain(x, std::erf(v), 2 / std::sqrt(static_cast<Real>(M_PIl)) * std::exp(-v * v));
      case 18:
        return chain(x, v > 50 ? v : std::log1p(std::exp(v)), 1 / (1 + std::exp(-v)));
      case 19:
        return chain(x, std::cos(v), -std::sin(v));
      case 20: {
        const Dual y = evaluate();
        const Real slope = v > y.value ? x.slope : v < y.value ? y.slope : (x.slope + y.slope) / 2;
        return combine(x, y, std::max(v, y.value), slope);
      }
      case 21:
        return chain(x, std::min(std::max(v, -0.51L), 0.73L), v >= -0.51L && v <= 0.73L ? 1 : 0);
      case 22: {
        const Dual y = shifted(chain(x, std::sin(v), std::cos(v)), 1.25L);
        return chain(y, std::pow(y.value, 2.3L), 2.3L * std::pow(y.value, 1.3L));
      }
      default: {
        const Dual y = evaluate();
        const Dual& chosen = score_ < item.number ? x : y;
        return combine(x, y, chosen.value, chosen.slope);
      }
    }
  }

  std::mt19937 random_;
  std::vector<Item> items_;
  std::size_t next_ = 0;
  Real score_ = 0;
};

TEST(Derivative, AgreesWithDualNumbersOnRandomExpressions) {
  int compared = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    RandomExpression expression(seed);
    const std::string text = expression.text(5);
    const Activation activation(text);
    for (const double score : {-2.7182818, -0.6131847, 0.1273291, 0.9119283, 3.3702917}) {
      const Dual expected = expression.at(score);
      if (expected.largest > 1e6L) continue;  // rounding is then amplified beyond the tolerance
      const double tolerance = 1e-11 * static_cast<double>(1 + expected.largest * expected.largest);
      ASSERT_NEAR(activation.value(score), static_cast<double>(expected.value), tolerance) << text << " at " << score;
      ASSERT_NEAR(activation.derivative(score), static_cast<double>(expected.slope), tolerance)
          << text << " at " << score << "\nf' = " << activation.derivative_text();
      ++compared;
    }
  }
  EXPECT_GT(compared, 10000);
}

TEST(Derivative, ItsTextIsTheDerivative) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const Activation activation(RandomExpression(seed).text(3));
    const std::string text = activation.derivative_text();
    if (text.find("...") != std::string::npos) continue;
    const Activation derivative(text);
    for (const double score : {-1.3, 0.4, 2.2}) {
      const double expected = activation.derivative(score);
      ASSERT_NEAR(derivative.value(score), expected, 1e-11 * (1 + std::fabs(expected)))
          << activation.text() << "\nf' = " << text;
    }
  }
}

TEST(Derivative, ItsTextHasParenthesesAroundAPowerWithAPower) {
  const Activation activation("((2 + s)^0.3)^1.7");
  EXPECT_NEAR(Activation(activation.derivative_text()).value(1.5), activation.derivative(1.5), 1e-14);
}

struct Kink {
  const char* text;
  double score;
  double slope;
};

TEST(Derivative, FollowsTheTableAtKinksAndTies) {
  for (const Kink& kink : std::vector<Kink>{
           {"relu(s)", 0, 0},
           {"relu(s)", -0.0, 0},
           {"abs(s)", 0, 0},
           {"sqrt(abs(s))", 0, 0},
           {"log(abs(s))", 0, 0},
           {"sign(s)", 0, 0},
           {"sign(s)", 2, 0},
           {"s * sign(s)", -2, -1},
           {"clamp(s, -1, 2)", -1, 1},
           {"clamp(s, -1, 2)", 2, 1},
           {"clamp(s, -1, 2)", 0, 1},
           {"clamp(s, -1, 2)", -1.5, 0},
           {"clamp(s, -1, 2)", 2.5, 0},
           {"guard(s, -1, 2)", -1.5, 1},
           {"guard(s, -1, 2)", 2.5, 1},
           {"max(s, 0)", 0, 0.5},
           {"max(0, s)", 0, 0.5},
           {"min(s, 1)", 1, 0.5},
           {"max(s, 0)", 1, 1},
           {"max(s, 0)", -1, 0},
           {"min(s, 0)", 1, 0},
           {"max(3 * s, s)", 0, 2},
           {"max(s, 2 * s, 4 * s)", 0, 2.75},
           {"min(s, s)", 3, 1},
           {"where(s > 0, 2 * s, 3 * s)", 0, 3},
           {"where(s >= 0, 2 * s, 3 * s)", 0, 2},
           {"leaky_relu", 0, 0.01},
           {"hardswish", -3, -0.5},
           {"hardswish", 3, 1.5},
           {"relu2", 0, 0},
       }) {
    EXPECT_EQ(Activation(kink.text).derivative(kink.score), kink.slope) << kink.text << " at " << kink.score;
  }
}

TEST(Derivative, AClosedGateIsZeroBesideInfinity) {
  EXPECT_EQ(Activation("exp(clamp(s, 0, 1)^2) * 2").derivative(-infinity), 0);
  EXPECT_EQ(Activation("sqrt(relu(s))").derivative(-3), 0);  // 1 / sqrt(0) * 0
  EXPECT_EQ(Activation("log(clamp(s, 0, 1))").derivative(-3), 0);
  EXPECT_EQ(Activation("where(s > 0, s, 0)^2 * s").derivative(-infinity), 0);
}

/// One factor of each product grows without bound on one side. On this side the derivative of the other factor is 0,
/// and the product of the two has the limit 0.
TEST(Derivative, OfAProductIsFiniteWhereOneFactorHasNoBoundAndTheOtherIsLevel) {
  struct Limits {
    const char* text;
    double at_minus_infinity;
    double at_infinity;
  };
  for (const Limits& limits : std::vector<Limits>{{"min(s, 0) * tanh(s)", -1, 0},
                                                  {"tanh(s) * min(s, 0)", -1, 0},
                                                  {"max(s, 0) * tanh(s)", 0, 1},
                                                  {"tanh(s) * max(s, 0)", 0, 1},
                                                  {"min(s, 5) * erf(s)", -1, 0},
                                                  {"max(s, -5) * erf(s)", 0, 1},
                                                  {"min(s, 0) * sigmoid(-s)", 1, 0},
                                                  {"sigmoid(-s) * min(s, 0)", 1, 0},
                                                  {"max(s, 0) * sigmoid(s)", 0, 1},
                                                  {"sigmoid(s) * max(s, 0)", 0, 1},
                                                  {"softplus(s) * tanh(s)", 0, 1},
                                                  {"softplus(-s) * tanh(s)", 1, 0},
                                                  {"-softplus(s) * tanh(s)", 0, -1},
                                                  {"-softplus(-s) * tanh(s)", -1, 0}}) {
    const Activation activation(limits.text);
    EXPECT_EQ(activation.derivative(-infinity), limits.at_minus_infinity) << limits.text;
    EXPECT_EQ(activation.derivative(infinity), limits.at_infinity) << limits.text;
    EXPECT_EQ(activation.derivative(-1e300), limits.at_minus_infinity) << limits.text;
    EXPECT_EQ(activation.derivative(1e300), limits.at_infinity) << limits.text;
    const gdpa::activation::Program& both = activation.function().value_and_derivative();
    const auto in_fp32 = [&](double score) {
      return gdpa::activation::evaluate_in_fp32(both, static_cast<float>(score))[1];
    };
    EXPECT_EQ(in_fp32(-infinity), static_cast<float>(limits.at_minus_infinity)) << limits.text;
    EXPECT_EQ(in_fp32(infinity), static_cast<float>(limits.at_infinity)) << limits.text;
  }
}

TEST(Derivative, AGateThatChangesNothingIsNotComputed) {
  EXPECT_EQ(Activation("abs(s)").derivative_text(), "sign(s)");
  EXPECT_EQ(Activation("relu2").derivative_text(), "2 * relu(s)");
}

TEST(Derivative, GatesArePulledOutOfProducts) {
  EXPECT_EQ(Activation("exp(relu(s))").derivative_text(), "where(s <= 0, 0, exp(relu(s)))");
  EXPECT_EQ(Activation("2 * clamp(s, 0, 1)").derivative_text(), "where(1 < clamp(s, 0, inf), 0, where(s < 0, 0, 2))");
  EXPECT_EQ(Activation("relu2").derivative_text(), "2 * relu(s)");
}

TEST(Derivative, SimplificationKeepsWhatInfinityGives) {
  EXPECT_TRUE(std::isnan(Activation("s - s").value(infinity)));
  EXPECT_TRUE(std::isnan(Activation("0 * s").value(infinity)));
  EXPECT_TRUE(std::isnan(Activation("s / s").value(0)));
  EXPECT_TRUE(std::isnan(Activation("1 + 3 * s + -2 * s").value(infinity)));
  EXPECT_DOUBLE_EQ(Activation("1e200 * (1e200 * s)").value(1e-300), 1e100);
  EXPECT_DOUBLE_EQ(Activation("1e30 * (1e30 * s)").value(1e-60), 1);
  EXPECT_DOUBLE_EQ(Activation("(1e-200 * s) * s").value(1e200), 1e200);
}

struct Known {
  const char* text;
  double (*slope)(double);
};

TEST(Derivative, AgreesWithFormulasWrittenByHand) {
  const std::vector<Known> table = {
      {"s^2", [](double s) { return 2 * s; }},
      {"s^-2", [](double s) { return -2 / (s * s * s); }},
      {"s^2.5", [](double s) { return 2.5 * std::pow(s, 1.5); }},
      {"s^s", [](double s) { return std::pow(s, s) * (std::log(s) + 1); }},
      {"2^s", [](double s) { return std::log(2) * std::pow(2, s); }},
      {"3^s", [](double s) { return std::log(3) * std::pow(3, s); }},
      {"s * log(s)", [](double s) { return std::log(s) + 1; }},
      {"tanh(s)^2", [](double s) { return 2 * std::tanh(s) / std::pow(std::cosh(s), 2); }},
      {"1 / (1 + s^2)", [](double s) { return -2 * s / std::pow(1 + s * s, 2); }},
      {"s / (1 + abs(s))", [](double s) { return 1 / std::pow(1 + s, 2); }},
      {"exp(-s^2) * cos(s)", [](double s) { return -std::exp(-s * s) * (2 * s * std::cos(s) + std::sin(s)); }},
      {"rsqrt(s)", [](double s) { return -0.5 * std::pow(s, -1.5); }},
      {"min(s, s^2)", [](double s) { return s < 1 ? 2 * s : 1; }},
      {"clamp(s^2, s, 2 * s)", [](double s) { return s < 1   ? 1
                                                     : s > 2 ? 2
                                                             : 2 * s; }},
      {"s * tanh(softplus(s))",
       [](double s) {
         const double p = std::log1p(std::exp(s)), t = std::tanh(p);
         return t + s * (1 - t * t) / (1 + std::exp(-s));
       }},
  };
  for (const Known& known : table) {
    for (const double score : {0.13, 0.6, 1.4, 2.9}) {
      const double expected = known.slope(score);
      EXPECT_NEAR(Activation(known.text).derivative(score), expected, 1e-13 * (1 + std::fabs(expected)))
          << known.text << " at " << score;
    }
  }
}

TEST(Derivative, OfEachFunctionIsTheLimitOfDifferences) {
  for (const char* name : {"abs", "cos", "erf", "exp", "exp2", "expm1", "log", "log1p", "log2", "rsqrt", "sigmoid",
                           "sin", "softplus", "sqrt", "tanh"}) {
    const Activation activation(std::string(name) + "(s)");
    for (const double score : {0.13, 0.6, 1.4, 2.9}) {
      constexpr double step = 1e-5;
      const double expected = (activation.value(score + step) - activation.value(score - step)) / (2 * step);
      EXPECT_NEAR(activation.derivative(score), expected, 1e-8 * (1 + std::fabs(expected))) << name << " at " << score;
    }
  }
}

TEST(Derivative, APowerIsNotNaNAtZero) {
  EXPECT_EQ(Activation("s^1.5").derivative(0), 0);
  EXPECT_EQ(Activation("s^2.5").derivative(0), 0);
  EXPECT_EQ(Activation("s^3").derivative(0), 0);
  EXPECT_EQ(Activation("s^1").derivative(0), 1);
}

TEST(Derivative, WithRespectToAParameter) {
  namespace activation = gdpa::activation;
  activation::Parsed parsed = activation::parse("a * tanh(b * s) + s^a");
  activation::Tree& tree = parsed.tree;
  const double a = 1.7, b = 0.6, s = 0.9;
  const auto number = [&](activation::NodeId node) {
    const activation::NodeId bound = tree.bind(node, {{"a", a}, {"b", b}}, {});
    return activation::evaluate(activation::lower(tree, {bound}, ""), s)[0];
  };
  const auto slope = [&](activation::NodeId variable) {
    return number(activation::differentiate(tree, parsed.root, variable));
  };
  const double t = std::tanh(b * s);
  EXPECT_NEAR(number(parsed.root), a * t + std::pow(s, a), 1e-15);
  EXPECT_NEAR(slope(tree.parameter("a")), t + std::pow(s, a) * std::log(s), 1e-14);
  EXPECT_NEAR(slope(tree.parameter("b")), a * s * (1 - t * t), 1e-14);
  EXPECT_NEAR(slope(tree.score()), a * b * (1 - t * t) + a * std::pow(s, a - 1), 1e-14);
  EXPECT_EQ(slope(tree.parameter("c")), 0);
}

TEST(Derivative, ExtremaThatDifferAtTheEdgeAloneAreOneStep) {
  const auto steps = [](const char* text) { return Activation(text).function().value().steps.size(); };
  EXPECT_EQ(steps("max(s, 0) * relu(s)"), steps("relu(s) * relu(s)"));
}

TEST(Derivative, ManyOperandsAndNestedGatesStaySmall) {
  std::string text = "max(s";
  for (int i = 0; i < 100; ++i) text += ", " + std::to_string(i) + " * s";
  EXPECT_EQ(Activation(text + ") * exp(s)").derivative(-1), 0 * std::exp(-1));
  std::string bounds = "max(s";  // ties of ties: shared, not written out
  for (int i = 0; i < 40; ++i) bounds += ", " + std::to_string(i);
  EXPECT_EQ(Activation("2 * " + bounds + ")").derivative(39), 1);
  std::string nested = "s";
  for (int i = 0; i < 8; ++i) nested = "clamp(" + nested + ", -1, 1) * relu(" + nested + ")";
  EXPECT_LT(Activation(nested).function().value_and_derivative().steps.size(), 400u);
}

}  // namespace
