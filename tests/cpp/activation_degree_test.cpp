// Homogeneous functions, and the shorter source that is generated for them.
#include "codegen/function.h"
#include "expression/rewrite/forms.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "expression/function.h"
#include "gdpa/activation.h"

namespace gdpa::activation {
namespace {

std::optional<double> degree(const char* text) { return degree_of(Activation(text).function().value()); }

TEST(Degree, OfHomogeneousFunctionsIsThePowerOfAFactor) {
  for (const auto& [text, expected] : {std::pair{"identity", 1.0},
                                       {"relu", 1.0},
                                       {"leaky_relu", 1.0},
                                       {"relu2", 2.0},
                                       {"abs(s)", 1.0},
                                       {"s * abs(s)", 2.0},
                                       {"3 * relu(s) - 0.5 * s", 1.0},
                                       {"max(s, -2 * s, 0)", 1.0},
                                       {"sqrt(abs(s))", 0.5},
                                       {"sign(s)", 0.0},
                                       {"s^3 / abs(s)", 2.0},
                                       {"abs(s)^1.3", 1.3},
                                       {"rsqrt(s^2)", -1.0},
                                       {"where(s > 0, s^2, 0)", 2.0},
                                       {"where(s^2 < abs(s * s), s, -s)", 1.0},
                                       {"s * exp(sign(s))", 1.0},
                                       {"s * floor(s / abs(s))", 1.0}}) {
    ASSERT_EQ(degree(text), expected) << text;
    const Activation activation(text);
    for (const double s : {-2.5, -0.3, 0.7, 4.0}) {
      const double f = activation.value(1.7 * s), multiple = std::pow(1.7, expected) * activation.value(s);
      EXPECT_NEAR(f, multiple, 1e-14 * (1 + std::fabs(f))) << text << " at " << s;
    }
  }
}

TEST(Degree, OtherFunctionsHaveNone) {
  for (const char* text :
       {"gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "softplus", "hardswish", "relu(s) + 1", "max(s, 1)",
        "floor(3 / s)", "where(s > 1, s, 0)", "s + s^2", "exp(s)", "2^s", "guard(s, -1, inf)"}) {
    EXPECT_EQ(degree(text), std::nullopt) << text;
  }
}

std::string source(const char* text, Accuracy accuracy, bool scales_scores) {
  return cuda_source(Activation(text).function(), accuracy, {scales_scores, false});
}

bool holds(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST(Degree, AReluOfUnscaledScoresIsLeftToTheRounding) {
  for (const Accuracy accuracy : {Accuracy::fast, Accuracy::exact}) {
    const std::string text = source("relu", accuracy, false);
    EXPECT_TRUE(holds(text, "scales_scores = false"));
    EXPECT_TRUE(holds(text, "clamps_at_zero = true"));
    EXPECT_TRUE(holds(text, "value_of_finite(float x, const InputValues& in) const {\n    return x;\n"));
    EXPECT_TRUE(holds(source("gelu", accuracy, true), "clamps_at_zero = false"));
  }
}

TEST(Degree, TheFactorOfTheScoreBecomesOneOfTheOutputWhereScoresAreUnscaled) {
  // 45 relu(s)^2
  const char* const text = "5 * relu(3 * s)^2";
  const std::string unscaled = source(text, Accuracy::fast, false);
  EXPECT_TRUE(holds(unscaled, "score_factor = 1.0f")) << unscaled;
  EXPECT_TRUE(holds(unscaled, "value_factor_of(const gdpa::Params&, int) { return 45.0f; }")) << unscaled;
}

}  // namespace
}  // namespace gdpa::activation
