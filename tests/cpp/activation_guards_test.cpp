// A value keeps the bounds of guard() that it needs, and loses the bounds that only the derivative needs. A value of
// finite scores also loses the bounds for infinite scores, in the source for GPUs, if fp32 allows it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "codegen/fast.h"
#include "codegen/function.h"
#include "expression/function.h"
#include "expression/lower.h"
#include "expression/rewrite/guards.h"
#include "expression/rewrite/prove.h"
#include "gdpa/activation.h"

namespace gdpa::activation {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

std::ptrdiff_t bounds_in(const Program& program) {
  return std::count_if(program.steps.begin(), program.steps.end(), [](const Step& step) {
    return step.operation == Operation::minimum || step.operation == Operation::maximum;
  });
}

TEST(Guards, ThatOnlyTheDerivativeNeedsAreNotInTheValue) {
  const Activation gelu_tanh("gelu_tanh");
  EXPECT_EQ(bounds_in(gelu_tanh.function().value()), 1);  // at -22, of infinity times 0; not at 22
  EXPECT_EQ(gelu_tanh.value(infinity), infinity);
  EXPECT_EQ(gelu_tanh.value(-infinity), 0);
  EXPECT_EQ(gelu_tanh.derivative(infinity), 1);
}

TEST(Guards, ThatTheValueNeedsStay) {
  for (const char* text : {"silu", "gelu", "guard(s, -800, inf) * sigmoid(s)"}) {
    const Activation activation(text);
    EXPECT_EQ(bounds_in(activation.function().value()), 1) << text;
    EXPECT_EQ(activation.value(-infinity), 0) << text;
  }
}

TEST(Guards, ThatChangeAFiniteValueStay) {
  const Activation clamped("guard(s, -1, 2)");
  EXPECT_EQ(clamped.value(3), 2);
  EXPECT_EQ(clamped.value(-1.5), -1);
  const Activation curved("guard(s^2, -inf, 4)");  // not of the score itself
  EXPECT_EQ(curved.value(3), 4);
}

TEST(Guards, OfTheDerivativeAreSharedWithTheValueBesideItInTheFastFormToo) {
  const Function& function = Activation("gelu_tanh").function();
  const FastPrograms fast =
      rewrite_fast(function.value(), function.value_and_derivative(), ValueFactor::suits_bfloat16);
  const auto& steps = fast.value_and_derivative.program.steps;
  EXPECT_EQ(std::count_if(steps.begin(), steps.end(), [](const Step& s) { return s.operation == Operation::tanh; }), 1);
  EXPECT_EQ(bounds_in(fast.value.program), 1);
}

TEST(Guards, WithoutThemTheValueIsTheSameBitsAsBesideTheDerivative) {
  for (const NamedActivation& named : named_activations()) {
    const Activation activation(named.name);
    const Program& both = activation.function().value_and_derivative();
    for (double s = -60; s <= 60; s += 0.37) EXPECT_EQ(activation.value(s), evaluate(both, s)[0]) << named.name << s;
  }
}

TEST(Guards, ThatOnlyInfiniteScoresNeedAreNotInTheValueOfFiniteOnes) {
  for (const auto& [text, low] :
       {std::pair{"gelu", -40.0}, {"gelu_tanh", -22.0}, {"silu", -800.0}, {"hardswish", -3.0}}) {
    const Function& function = Activation(text).function();
    EXPECT_EQ(bounds_in(function.value_of_finite()), bounds_in(function.value()) - 1) << text;
    EXPECT_EQ(function.finite_scores().low, low) << text;
    EXPECT_EQ(function.finite_scores().high, infinity) << text;
    for (const double s : {-infinity, -1e38, low - 0.1, low, -1.5, 0.7, 1e38, infinity}) {
      EXPECT_EQ(evaluate(function.value_of_finite(), std::fmax(s, low))[0], evaluate(function.value(), s)[0])
          << text << " at " << s;
    }
    EXPECT_EQ(evaluate(function.value_of_finite(), -1e38)[0], 0) << text;
    EXPECT_TRUE(std::isnan(evaluate(function.value_of_finite(), -infinity)[0])) << text;
  }
}

TEST(Guards, OnBothSidesAreBothTakenOut) {
  const Function& function = Activation("guard(s, -40, 50) * exp(-s^2)").function();
  EXPECT_EQ(bounds_in(function.value_of_finite()), 0);
  EXPECT_EQ(function.finite_scores().low, -40);
  EXPECT_EQ(function.finite_scores().high, 50);
}

TEST(Guards, OfSeveralBoundsTheNarrowestIsLeft) {
  for (const char* text : {"guard(s, -900, inf) * sigmoid(s) + guard(s, -800, inf) * sigmoid(2 * s)",
                           "guard(s, -800, inf) * sigmoid(s) + guard(s, -900, inf) * sigmoid(2 * s)"}) {
    const Function& function = Activation(text).function();
    EXPECT_EQ(bounds_in(function.value_of_finite()), 0) << text;
    EXPECT_EQ(function.finite_scores().low, -800) << text;
  }
}

TEST(Guards, StayInTheValueOfFiniteScoresWhereTheyChangeANumber) {
  for (const char* text :
       {"guard(s, -2, inf) * sigmoid(guard(s, -2, inf))",               // level because of the guard
        "guard(s, -30, inf) * sigmoid(s)",                              // not level yet
        "guard(s, -800, inf) * sigmoid(s) + s",                         // never level
        "where(guard(s, -1000, inf) < -1e300, 5, 0)",                   // at -inf another number, not NaN
        "guard(s, -800, inf) * sigmoid(s) + where(s < -1e300, 5, 0)"})  // with the guard another number at -inf
  {
    const Function& function = Activation(text).function();
    EXPECT_EQ(function.finite_scores().low, -infinity) << text;
    EXPECT_EQ(bounds_in(function.value_of_finite()), 1) << text;
  }
}

bool holds(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// The body of value_of_finite.
std::string of_finite(const std::string& source) {
  const std::size_t begin = source.find("value_of_finite(float x, const InputValues& in)");
  return source.substr(begin, source.find('}', begin) - begin);
}

TEST(Guards, AreOutsideOfTheFunctionThatAGpuComputesForFiniteScores) {
  for (const Accuracy accuracy : {Accuracy::fast, Accuracy::exact}) {
    for (const char* text : {"gelu", "gelu_tanh", "silu", "hardswish"}) {
      const std::string source = cuda_source(Activation(text).function(), accuracy);
      EXPECT_TRUE(holds(source, "bounds_scores = true")) << source;
      EXPECT_TRUE(holds(source, "return value_of_finite(gdpa::maximum(-")) << source;
    }
    for (const char* text : {"gelu", "gelu_tanh", "silu"}) {
      EXPECT_FALSE(holds(of_finite(cuda_source(Activation(text).function(), accuracy)), "maximum")) << text;
    }
    for (const char* text : {"relu", "sigmoid", "softplus"}) {
      const std::string source = cuda_source(Activation(text).function(), accuracy);
      EXPECT_TRUE(holds(source, "bounds_scores = false")) << source;
      EXPECT_TRUE(holds(source, "return value_of_finite(x, in);")) << source;
    }
  }
}

/// Hopper's forward has a first pass without the guards only if the function says that there are some.
TEST(Guards, OfASumAreOutsideOfTheFunctionForFiniteScoresToo) {
  const Activation sum("silu(s + bias[batch, head, q_idx, kv_idx])", {}, {"bias"});
  EXPECT_TRUE(sum.function().facts().bounds_scores);
  EXPECT_TRUE(Activation("silu; tanh").function().facts().bounds_scores);
  EXPECT_FALSE(Activation("tanh(s + bias[batch, head, q_idx, kv_idx])", {}, {"bias"}).function().facts().bounds_scores);
}

TEST(Guards, AreMultipliedByTheFactorOfTheScore) {
  const std::string source = cuda_source(Activation("silu").function(), Accuracy::fast);
  EXPECT_TRUE(holds(source, "score_factor = 0.5f")) << source;
  EXPECT_TRUE(holds(source, "value_of_finite(gdpa::maximum(-400.0f, x), in)")) << source;
}

TEST(Guards, StayInsideWhereFp32OverflowsBeyondThem) {
  const Function& quartic = Activation("guard(s, -1000, inf)^4 * sigmoid(s)").function();
  EXPECT_EQ(quartic.finite_scores().low, -1000);  // in fp64 it is 0
  for (const Accuracy accuracy : {Accuracy::fast, Accuracy::exact}) {
    const std::string source = cuda_source(quartic, accuracy);
    EXPECT_TRUE(holds(source, "bounds_scores = false")) << source;
    EXPECT_TRUE(holds(of_finite(source), "maximum")) << source;
  }
}

TEST(Guards, AreNeededWhereTheFastDivisionGivesZeroForAGreatDivisor) {
  const Program softsign = Activation("s / (1 + abs(s))").function().value();
  EXPECT_FALSE(is_level_in_fp32(softsign, {-1e20, infinity}));
  EXPECT_FALSE(is_level_in_fp32(softsign, {-infinity, 1e20}));
}

TEST(Guards, WithoutAnyAResultOfFAndItsDerivativeIsTheSameOrNotFinite) {
  for (const char* text : {"gelu", "gelu_tanh", "silu", "hardswish"}) {
    const Function& function = Activation(text).function();
    EXPECT_TRUE(function.has_guards()) << text;
    for (const bool is_fast : {false, true}) {
      EXPECT_TRUE(is_same_where_finite(joined(function.value(), function.value_and_derivative(),
                                              function.unguarded_value_and_derivative(), is_fast)))
          << text << (is_fast ? ", fast" : "");
    }
  }
  for (const char* text : {"relu", "identity", "tanh", "sigmoid", "s * sigmoid(1.702 * s)"}) {
    EXPECT_FALSE(Activation(text).function().has_guards()) << text;
  }
}

TEST(Guards, AResultThatIsAnotherNumberIsFound) {
  const auto program_of = [](const char* text) { return Activation(text).function().value_and_derivative(); };
  const Program silu = program_of("silu");
  const auto is_same = [](const Program& one, const Program& other) {
    return is_same_where_finite(joined(one, one, other, false));
  };
  EXPECT_TRUE(is_same(silu, silu));
  EXPECT_FALSE(is_same(silu, program_of("1.001 * silu(s)")));
  EXPECT_FALSE(is_same(program_of("relu"), program_of("min(relu(s), 1e30)")));  // at great scores alone
}

/// A bump of height 1 and width 1e-3 near s = 100.2: eight samples of each power of two all miss it.
const std::string bump = "max(0, 1 - abs(s - 100.2) * 2000)";

TEST(Guards, StayWhereTheFunctionDiffersBetweenSamples) {
  // Beyond 50 the guarded bump is 0. Without the guard it is 1 at 100.2.
  const std::string guarded = "max(0, 1 - abs(guard(s, -inf, 50) - 100.2) * 2000)";
  ASSERT_EQ(Activation(bump).value(100.2), 1);
  const Activation activation(guarded);
  EXPECT_EQ(activation.value(100.2), 0);
  EXPECT_EQ(bounds_in(activation.function().value()), 2);
  EXPECT_EQ(evaluate(activation.function().value_of_finite(), 100.2)[0], 0);
  const Function& function = activation.function();
  for (const bool is_fast : {false, true}) {
    EXPECT_FALSE(is_same_where_finite(
        joined(function.value(), function.value_and_derivative(), function.unguarded_value_and_derivative(), is_fast)));
  }
}

// The bounds in the source for Hopper's backward. A bound takes as long as two products.
TEST(Guards, AreLeftOutOfTheFirstPassOfBackward) {
  const std::string source = cuda_source(Activation("gelu_tanh").function(), Accuracy::fast, {true, false});
  const std::size_t unguarded = source.find("struct UnguardedActivationWithDerivative");
  ASSERT_NE(unguarded, std::string::npos);
  EXPECT_EQ(source.find("imum(", unguarded), std::string::npos);
  EXPECT_NE(source.rfind("imum(", unguarded), std::string::npos);
}

}  // namespace
}  // namespace gdpa::activation
