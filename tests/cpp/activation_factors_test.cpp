// The factors of a function, score_factor and value_factor, and the instructions that they save. The kernel's products
// by `scale` and `out_scale` absorb these factors.
#include "expression/rewrite/factors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "codegen/fast.h"
#include "expression/function.h"
#include "expression/lower.h"
#include "gdpa/activation.h"

namespace gdpa::activation {
namespace {

FastPrograms fast(const std::string& text, ValueFactor value_factor = ValueFactor::suits_bfloat16) {
  const Activation activation(text);
  return rewrite_fast(activation.function().value(), activation.function().value_and_derivative(), value_factor);
}

/// The form that is printed where fp32 allows.
FactoredProgram fast_of_finite(const std::string& text, ValueFactor value_factor) {
  const Function& function = Activation(text).function();
  return rewrite_fast(function.value_of_finite(), function.value_and_derivative(), value_factor).value;
}

std::ptrdiff_t count(const Program& program, Operation operation) {
  return std::count_if(program.steps.begin(), program.steps.end(),
                       [&](const Step& step) { return step.operation == operation; });
}

/// Products and sums; bounds.
struct Arithmetic {
  std::ptrdiff_t products;
  std::ptrdiff_t sums;
  std::ptrdiff_t bounds;

  bool operator==(const Arithmetic&) const = default;
};

Arithmetic arithmetic(const FactoredProgram& factored) {
  const Program& program = factored.program;
  return {count(program, Operation::multiply), count(program, Operation::add) + count(program, Operation::subtract),
          count(program, Operation::minimum) + count(program, Operation::maximum)};
}

/// f of a score as fp32 arithmetic makes it of the program.
double in_fp32(const FactoredProgram& factored, double score) {
  const float x = static_cast<float>(factored.score_factor) * static_cast<float>(score);
  return double{static_cast<float>(factored.value_factor)} * double{evaluate_in_fp32(factored.program, x)[0]};
}

TEST(Factors, ACubicIsMonicInGeluTanh) {
  // y (y^2 + C), y + y tanh: every product but one is part of a sum; and the bound that keeps -inf away.
  for (const char* text : {"gelu_tanh", "0.5 * s * (1 + tanh(sqrt(2 / pi) * (s + 0.044715 * s^3)))"}) {
    const FactoredProgram value = fast(text).value;
    EXPECT_NEAR(value.score_factor, std::cbrt(std::sqrt(2 / M_PI) * 0.044715), 1e-12) << text;
    EXPECT_NEAR(value.value_factor, 0.5 / value.score_factor, 1e-12) << text;
    EXPECT_EQ(arithmetic(value), (Arithmetic{3, 2, text == std::string("gelu_tanh")})) << text;
  }
}

TEST(Factors, OfFiniteScoresTheMonicCubicNeedsNoBound) {
  EXPECT_EQ(arithmetic(fast_of_finite("gelu_tanh", ValueFactor::suits_fp16)), (Arithmetic{3, 2, 0}));
}

TEST(Factors, AQuinticIsMonicInGelu) {
  const FactoredProgram value = fast("gelu").value;
  EXPECT_EQ(arithmetic(value), (Arithmetic{4, 3, 2}));
  EXPECT_GT(value.value_factor, 1);
}

TEST(Factors, HalfTheScoreMakesSiluOneSpecialFunctionAndOneFusedProduct) {
  for (const char* text : {"silu", "s * sigmoid(s)"}) {
    const FactoredProgram value = fast(text).value;
    EXPECT_EQ(value.score_factor, 0.5) << text;
    EXPECT_EQ(count(value.program, Operation::multiply), 1) << text;
    EXPECT_EQ(count(value.program, Operation::add), 1) << text;
  }
}

TEST(Factors, TheConstantOfAnExponentialGoesIntoTheScale) {
  const FactoredProgram value = fast("sigmoid").value;
  EXPECT_DOUBLE_EQ(value.score_factor, 1 / std::log(2.0));
  EXPECT_EQ(count(value.program, Operation::multiply), 0);
  EXPECT_EQ(arithmetic(fast("exp(2 - (3 * s)^2)").value), (Arithmetic{1, 1, 0}));
}

TEST(Factors, AFactorOfTheWholeGoesIntoTheOutput) {
  for (const char* text : {"7 * tanh(s)", "-0.25 * tanh(s)"}) {
    const FactoredProgram value = fast(text).value;
    EXPECT_EQ(value.value_factor, text[0] == '7' ? 7 : -0.25);
    EXPECT_EQ(arithmetic(value), (Arithmetic{0, 0, 0}));
  }
  EXPECT_EQ(arithmetic(fast("s * sigmoid(1.702 * s)").value), (Arithmetic{1, 1, 0}));
}

TEST(Factors, WeightsOfFp16AreNotLargerThanTheFunctionNorMuchSmaller) {
  for (const char* text : {"gelu", "gelu_tanh", "silu", "s * sigmoid(1.702 * s)", "7 * tanh(s)", "-0.25 * tanh(s)",
                           "hardswish", "3 * tanh(s)"}) {
    const double factor = std::fabs(fast(text, ValueFactor::suits_fp16).value.value_factor);
    EXPECT_GE(factor, 1) << text;
    EXPECT_LE(factor, 4) << text;
  }
}

TEST(Factors, NoneIsTakenOutOfTheValueBesideTheDerivative) {
  for (const char* text : {"gelu", "gelu_tanh", "7 * tanh(s)"}) {
    EXPECT_EQ(fast(text).value_and_derivative.value_factor, 1) << text;
  }
}

TEST(Factors, AreOneWhereNothingIsSaved) {
  for (const char* text : {"relu", "identity", "tanh", "softplus"}) {
    const FactoredProgram value = fast(text).value;
    EXPECT_EQ(value.score_factor, 1) << text;
    EXPECT_EQ(value.value_factor, 1) << text;
  }
}

TEST(Factors, OfANegativeBoundExchangeItsSides) {
  Tree tree;
  const NodeId negative = tree.negate(tree.multiply(tree.number(3), tree.score()));
  const NodeId bounded = tree.minimum(negative, tree.number(2));
  const NodeId value = tree.multiply(bounded, tree.make(Operation::tanh, tree.multiply(tree.number(3), tree.score())));
  const FactoredProgram factored = factor(tree, {value}, ValueFactor::is_one);
  EXPECT_EQ(factored.score_factor, 3);
  for (double s = -4; s < 4; s += 0.3) {
    EXPECT_NEAR(evaluate(factored.program, 3 * s)[0], std::fmin(-3 * s, 2) * std::tanh(3 * s), 1e-14) << s;
  }
}

/// Expressions of users: polynomials, sums, bounds and signs, in every position through which a factor may pass.
const std::vector<std::string>& expressions() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> texts;
    for (const NamedActivation& named : named_activations()) texts.push_back(named.name);
    for (const char* text : {"s * sigmoid(1.702 * s)",
                             "0.5 * s * (1 + tanh(sqrt(2 / pi) * (s + 0.044715 * s^3)))",
                             "s * (1 + 0.1 * s^2)",
                             "s^3 - 2 * s^2",
                             "s - 0.1 * s^2 + 0.01 * s^3",
                             "3 * s^4 + 2 * s^2 + 1",
                             "exp(2 - (3 * s)^2)",
                             "exp(1 - s)",
                             "5 * tanh(0.3 * s) - 1",
                             "-0.7 * relu(2 * s - 1)",
                             "clamp(0.2 * s + 0.5, 0, 1) * s",
                             "erf(0.3 * s) * s",
                             "s * tanh(softplus(s))",
                             "1 - 2 * sigmoid(3 * s)",
                             "2 - 2 * (1 + tanh(s))",
                             "s * (3 - (1 + tanh(s)))",
                             "min(2 * s, 3, -s^2) + max(-4 * s, -1)",
                             "abs(3 * s) - s",
                             "where(s > 0, 2 * s, -0.3 * s)",
                             "where(s > 0, s, 0.2 * s) * 9",
                             "where(s > 0, s, 3 * s)",
                             "cos(2 * s + 1)",
                             "(2 * s + 1) * (3 - s) / 7",
                             "s * (s * (s * 1e-2 - 0.3) + 2)",
                             "1e-6 * s * (1 + 1e6 * tanh(s))",
                             "tanh(-2 * (s - 0.5 * s^3))",
                             "(1 + s^2)^-0.5 * s",
                             "s / (1 + abs(s))",
                             "-s",
                             "-(1 + s) * sigmoid(-s)"}) {
      texts.emplace_back(text);
    }
    return texts;
  }();
  return all;
}

TEST(Factors, LeaveTheFunctionAsItIsInFp32) {
  for (const std::string& text : expressions()) {
    const Activation activation(text);
    // erf's polynomial is off by 3.7e-5.
    const bool has_erf = count(activation.function().value(), Operation::erf) > 0;
    for (const ValueFactor value_factor : {ValueFactor::suits_fp16, ValueFactor::suits_bfloat16}) {
      const FactoredProgram value = fast(text, value_factor).value;
      const FactoredProgram of_finite = fast_of_finite(text, value_factor);
      for (double s = -9; s <= 9; s += 0.0137) {
        const double f = activation.value(static_cast<double>(static_cast<float>(s)));
        const double tolerance = has_erf ? 4e-5 * (1 + std::fabs(s)) : 4e-6 * (1 + std::fabs(s) + std::fabs(f));
        ASSERT_NEAR(in_fp32(value, s), f, tolerance) << text << " at " << s;
        ASSERT_NEAR(in_fp32(of_finite, s), f, tolerance) << text << " at " << s;
      }
    }
  }
}

TEST(Factors, KeepNaN) {
  for (const std::string& text : expressions()) {
    EXPECT_TRUE(std::isnan(in_fp32(fast(text).value, std::nan("")))) << text;
    EXPECT_TRUE(std::isnan(in_fp32(fast_of_finite(text, ValueFactor::suits_fp16), std::nan("")))) << text;
  }
}

/// f and f' with numbers of the head, as a kernel computes them of Q K^T with factors of both.
struct OfHead {
  FactoredProgram both;
  std::vector<double> numbers;  ///< of the inputs, then the scale

  double factor(const Program& program) const { return evaluate(program, 0, numbers)[0]; }
  double value(double x) const {
    const double head = both.head_factor.steps.empty() ? 1 : factor(both.head_factor);
    return both.value_factor * head * evaluate(both.program, x, numbers)[0];
  }
  double derivative(double x) const { return factor(both.other_factors[0]) * evaluate(both.program, x, numbers)[1]; }
};

OfHead of_head(const Activation& activation, const std::vector<double>& numbers, double scale) {
  const Function& function = activation.function();
  const HeadInputs head{std::vector<bool>(numbers.size(), true), numbers.size(), numbers.size() + 1, {true}};
  const FastPrograms fast = rewrite_fast(function.value(), function.value_and_derivative(), ValueFactor::suits_bfloat16,
                                         ValueFactor::suits_bfloat16, head);
  OfHead result{fast.value_and_derivative, {}};
  for (const Input& input : function.inputs()) result.numbers.push_back(numbers[input.tensor]);
  result.numbers.push_back(scale);
  return result;
}

TEST(FactorsOfAHead, LeaveTheFunctionAndItsDerivativeAsTheyAre) {
  for (const char* text :
       {"a * s * sigmoid(b * s)", "a * silu(b * s)", "b * tanh(a * s)", "a * s + b * s * s", "a * s * exp(-b * s * s)",
        "sigmoid(a * s + b)", "a * b * s - 2 * b * s^3", "1.5 * exp(a * s) + b", "a * b * (s + a * s^2 + 3 * b * s^3)",
        "where(s > 0, s, a * s) + b", "a * max(s, b)", "a * s * (1 - b * s) * (1 + b * s)"}) {
    const Activation activation(text, {}, {"a", "b"});
    for (const std::vector<double>& numbers :
         {std::vector<double>{1.3, -0.4}, std::vector<double>{0.0, 0.7}, std::vector<double>{-0.6, 0.0}}) {
      constexpr double scale = 0.125;
      const OfHead of = of_head(activation, numbers, scale);
      for (double s = -6; s <= 6; s += 0.37) {
        SCOPED_TRACE(testing::Message() << text << " at " << s << ", " << numbers[0] << ", " << numbers[1]);
        const double value = activation.value(s, numbers), derivative = activation.derivative(s, numbers);
        EXPECT_NEAR(of.value(s / scale), value, 1e-12 * (1 + std::fabs(value)));
        EXPECT_NEAR(of.derivative(s / scale), derivative, 1e-12 * (1 + std::fabs(derivative)));
      }
    }
  }
}

TEST(FactorsOfAHead, NeedNoInstructionsOfTheirOwn) {
  const OfHead of = of_head(Activation("a * s * sigmoid(b * s)", {}, {"a", "b"}), {1.5, 1.702}, 0.125);
  const Activation constant("1.5 * s * sigmoid(1.702 * s)");
  const FactoredProgram of_constants =
      rewrite_fast(constant.function().value(), constant.function().value_and_derivative(), ValueFactor::suits_bfloat16,
                   ValueFactor::suits_bfloat16)
          .value_and_derivative;
  EXPECT_EQ(count(of.both.program, Operation::tanh), 1);
  EXPECT_LE(count(of.both.program, Operation::add), count(of_constants.program, Operation::add));
  EXPECT_GT(of.both.head_factor.steps.size(), 1U);
}

/// f and f' for a kernel of backward that multiplies dV and dS by constant factors.
FactoredProgram with_constant_factors(const std::string& text) {
  const Activation activation(text);
  const Function& function = activation.function();
  const HeadInputs options{.gradient = 1, .take_factors = {true}, .may_lack_one = true};
  return rewrite_fast(function.value(), function.unguarded_value_and_derivative(), ValueFactor::suits_bfloat16,
                      ValueFactor::suits_bfloat16, options)
      .value_and_derivative;
}

TEST(FactorsOfBackward, LeaveTheFunctionAndItsDerivativeAsTheyAre) {
  const auto factor_of = [](const Program& program) { return program.steps.empty() ? 1 : evaluate(program, 0)[0]; };
  for (const std::string& text : expressions()) {
    const Activation activation(text);
    const double tolerance = count(activation.function().value(), Operation::erf) > 0 ? 4e-5 : 1e-11;
    const FactoredProgram both = with_constant_factors(text);
    for (double s = -9; s <= 9; s += 0.137) {
      SCOPED_TRACE(testing::Message() << text << " at " << s);
      const std::vector<double> results = evaluate(both.program, s * both.score_factor);
      const double f = both.value_factor * factor_of(both.head_factor) * results[0];
      const double derivative =
          factor_of(both.other_factors.empty() ? Program{} : both.other_factors[0]) * (results[1] + both.lacks_one);
      const double wanted = activation.value(s), of_derivative = activation.derivative(s);
      ASSERT_NEAR(f, wanted, tolerance * (1 + std::fabs(s)) * (1 + std::fabs(wanted)));
      ASSERT_NEAR(derivative, of_derivative, tolerance * (1 + std::fabs(s)) * (1 + std::fabs(of_derivative)));
    }
  }
}

TEST(FactorsOfBackward, ADerivativeThatIsASumWithANumberLacksOne) {
  for (const char* text : {"silu", "gelu_tanh", "gelu", "s * sigmoid(1.702 * s)"}) {
    EXPECT_TRUE(with_constant_factors(text).lacks_one) << text;
  }
  for (const char* text : {"relu", "sigmoid", "softplus", "s^3"}) {
    EXPECT_FALSE(with_constant_factors(text).lacks_one) << text;
  }
  // Every sum but one of silu and one of sigmoid contains a product.
  EXPECT_EQ(arithmetic(with_constant_factors("silu")), (Arithmetic{2, 3, 0})) << "f, 1 - t and r";
  EXPECT_EQ(arithmetic(with_constant_factors("gelu_tanh")), (Arithmetic{7, 5, 0}));
  EXPECT_EQ(arithmetic(with_constant_factors("sigmoid")), (Arithmetic{1, 2, 0})) << "1 + e, and p - p p";
}

TEST(Factors, OfFStayInADerivativeThatIsF) {
  const FactoredProgram both = rewrite_fast(Activation("3 * exp(s)").function().value(),
                                            Activation("3 * exp(s)").function().value_and_derivative(),
                                            ValueFactor::suits_bfloat16, ValueFactor::suits_bfloat16)
                                   .value_and_derivative;
  const std::vector<double> results = evaluate(both.program, both.score_factor * 0.7);
  EXPECT_NEAR(both.value_factor * results[0], 3 * std::exp(0.7), 1e-12);
  EXPECT_NEAR(results[1], 3 * std::exp(0.7), 1e-12);
}

}  // namespace
}  // namespace gdpa::activation
