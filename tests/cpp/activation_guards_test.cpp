// A value keeps the bounds of guard() that it needs, and loses those that only the derivative needs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "activation/fast.h"
#include "activation/function.h"
#include "activation/lower.h"
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

}  // namespace
}  // namespace gdpa::activation
