// The factor of a head by which forward multiplies Q, and the function that remains: f(s) = g(h s) / h^degree.
#include "codegen/function.h"
#include "expression/rewrite/forms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "codegen/fast.h"
#include "expression/function.h"
#include "expression/lower.h"
#include "gdpa/activation.h"

namespace gdpa::activation {
namespace {

/// The numbers a and b of the head, the scale of the scores, and the input for dP, which these functions do not read.
const HeadInputs head = {.are_of_head = {true, true, false, false}, .scale = 2, .gradient = 3};

FactoredProgram fast_program(const std::string& text) {
  const Activation activation(text, {}, {"a", "b"});
  const Function& function = activation.function();
  return rewrite_fast(function.value(), function.value_and_derivative(), ValueFactor::suits_bfloat16,
                      ValueFactor::is_one, head)
      .value;
}

TEST(QueryFactor, GivesTheSameFunctionForAllNumbersAndScores) {
  for (const char* const text : {"a * s * sigmoid(b * s)", "b * tanh(a * s)", "a * s * tanh(b * s)"}) {
    const Program value = fast_program(text).program;
    const std::optional<QueryFactor> factor = query_factor(value, head);
    ASSERT_TRUE(factor.has_value()) << text;
    for (const double a : {-1.7, 0.3, 40.0}) {
      for (const double b : {-0.9, 1e-4, 2.5}) {
        const std::vector<double> numbers = {a, b, 0.125, 0};
        const double h = evaluate(factor->factor, 0, numbers)[0];
        for (const double s : {-30.0, -1.1, 0.0, 0.4, 9.0}) {
          const double expected = evaluate(value, s, numbers)[0];
          const double got = evaluate(factor->function, h * s)[0] / std::pow(h, factor->degree);
          EXPECT_NEAR(got, expected, 1e-12 * (1 + std::fabs(expected))) << text << " at " << s;
        }
      }
    }
  }
}

TEST(QueryFactor, ExistsIfOneFactorMultipliesTheScoreAndNothingElseReadsANumber) {
  EXPECT_EQ(query_factor(fast_program("a * s * sigmoid(b * s)").program, head).value().degree, 1);
  EXPECT_EQ(query_factor(fast_program("b * tanh(a * s)").program, head).value().degree, 0);
  for (const char* const text : {"a * silu(s) + b * s", "tanh(a * s) * sigmoid(b * s)", "silu(s) + a * b",
                                 "b * tanh(a * s) + s", "silu(s + a * b)", "tanh(a * s) + tanh(b * s)",
                                 "s * sigmoid(a * b * s) + tanh(a * b * s)", "s * sigmoid(a * b * s) - 0.5"}) {
    EXPECT_FALSE(query_factor(fast_program(text).program, head).has_value()) << text;
  }
}

std::string forward_source(const char* text) {
  const Activation activation(text, {}, {"a", "b"});
  return cuda_source(activation.function(), Accuracy::fast, {.may_multiply_query = true, .has_fp16_p = false});
}

TEST(QueryFactor, IsTakenOnlyIfTheFunctionToleratesARoundedQuery) {
  const auto multiplies = [](const char* text) {
    return forward_source(text).find("multiplies_query = true") != std::string::npos;
  };
  EXPECT_TRUE(multiplies("a * s * sigmoid(b * s)"));
  EXPECT_FALSE(multiplies("b * tanh(a * s)")) << "at a large a, the output depends on the few scores near 0";
}

/// O is divided by the factor of Q if the degree is 1, so that its size has limits. Otherwise the limits would change
/// f.
TEST(QueryFactor, HasALimitedSizeOnlyIfTheOutputIsDividedByIt) {
  const auto limits = [](const char* text) { return forward_source(text).find("fast::moderate") != std::string::npos; };
  EXPECT_TRUE(limits("a * s * sigmoid(b * s)"));
  const std::string softplus = forward_source("softplus(a * b * s)");
  EXPECT_NE(softplus.find("multiplies_query = true"), std::string::npos);
  EXPECT_FALSE(limits("softplus(a * b * s)"));
}

}  // namespace
}  // namespace gdpa::activation
