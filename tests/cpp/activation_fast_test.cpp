// The rewriting for the hardware's approximations, evaluated in fp64 with exact operations. The error is therefore the
// error of the rewriting.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "codegen/fast.h"
#include "expression/function.h"
#include "expression/lower.h"
#include "gdpa/activation.h"

namespace {

using gdpa::Activation;
using gdpa::activation::evaluate;
using gdpa::activation::FactoredProgram;
using gdpa::activation::FastPrograms;
using gdpa::activation::Operation;
using gdpa::activation::Program;
using gdpa::activation::ValueFactor;

constexpr double infinity = std::numeric_limits<double>::infinity();

FastPrograms fast(const Activation& activation) {
  return rewrite_fast(activation.function().value(), activation.function().value_and_derivative(),
                      ValueFactor::suits_bfloat16);
}

double value_of(const FactoredProgram& value, double s) {
  return value.value_factor * evaluate(value.program, value.score_factor * s)[0];
}

std::vector<double> both_of(const FactoredProgram& both, double s) {
  return evaluate(both.program, both.score_factor * s);
}

std::size_t count(const Program& program, Operation operation) {
  return static_cast<std::size_t>(std::count_if(program.steps.begin(), program.steps.end(),
                                                [&](const auto& step) { return step.operation == operation; }));
}

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const auto& row : gdpa::named_activations()) result.push_back(row.name);
  return result;
}

TEST(Fast, IsTheSameFunctionButForThePolynomialOfErf) {
  std::vector<std::string> texts = names();
  for (const char* text : {"s * sigmoid(1.702 * s)", "exp(-s^2)", "exp(2 - (3 * s)^2)", "erf(1 - s)", "erf(1e-20 * s)",
                           "erf(3 * s)", "where(s > 0, s, 1.5 * s)", "where(s > 0, s, 0.5 * s)", "erf(1e20 * s)",
                           "s / (1 + exp(-s))", "sigmoid(-s) * sigmoid(s) + exp(s * (1 + 2 * s^2))"}) {
    texts.emplace_back(text);
  }
  for (const std::string& text : texts) {
    const Activation activation(text);
    const FastPrograms programs = fast(activation);
    const bool has_erf = count(activation.function().value(), Operation::erf) > 0;
    for (double s = -7; s <= 3; s += 0.01) {
      const std::vector<double> both = both_of(programs.value_and_derivative, s);
      const double f = activation.value(s), slope = activation.derivative(s);
      const double tolerance = has_erf ? 4e-5 * (1 + std::fabs(s)) : 1e-13 * (1 + std::fabs(f) + std::fabs(slope));
      ASSERT_NEAR(both[0], f, tolerance) << text << " at " << s;
      ASSERT_NEAR(both[1], slope, tolerance) << text << " at " << s;
      ASSERT_NEAR(value_of(programs.value, s), f, tolerance) << text << " at " << s;
    }
  }
}

TEST(Fast, NamesKeepTheirLimits) {
  for (const std::string& name : names()) {
    const Activation activation(name);
    const FastPrograms programs = fast(activation);
    for (const double s : {-infinity, -1e308, -1e4, 1e4, infinity}) {
      const std::vector<double> both = both_of(programs.value_and_derivative, s);
      EXPECT_DOUBLE_EQ(both[0], activation.value(s)) << name << " at " << s;
      EXPECT_DOUBLE_EQ(both[1], activation.derivative(s)) << name << " at " << s;
      EXPECT_DOUBLE_EQ(value_of(programs.value, s), activation.value(s)) << name << " at " << s;
    }
  }
}

TEST(Fast, HasOneSpecialFunctionForEachOfGeluAndSilu) {
  for (const char* name : {"gelu", "gelu_tanh", "silu"}) {
    const Program program = fast(Activation(name)).value.program;
    EXPECT_EQ(count(program, Operation::tanh), 1u) << name;
    for (const Operation slow :
         {Operation::exp2, Operation::exp, Operation::sigmoid, Operation::erf, Operation::divide}) {
      EXPECT_EQ(count(program, slow), 0u) << name;
    }
  }
}

TEST(Fast, ASigmoidThatStandsForItselfStaysRelativelyAccurate) {
  for (const char* text : {"sigmoid", "sigmoid(s - 8)", "1 - sigmoid(s)", "2 * sigmoid(s)", "sigmoid(s) / 3"}) {
    EXPECT_EQ(count(fast(Activation(text)).value_and_derivative.program, Operation::tanh), 0u) << text;
  }
}

}  // namespace
