// The multiple of the score that a function asks for, and what it saves: products by constants that the kernel's own
// product by `scale` does on the way.
#include "activation/factors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "activation/fast.h"
#include "activation/function.h"
#include "activation/lower.h"
#include "gdpa/activation.h"

namespace gdpa::activation {
namespace {

FactoredPrograms fast(const char* text) {
  const Activation activation(text);
  return rewrite_fast(activation.function().value(), activation.function().value_and_derivative());
}

std::ptrdiff_t count(const Program& program, Operation operation) {
  return std::count_if(program.steps.begin(), program.steps.end(),
                       [&](const Step& step) { return step.operation == operation; });
}

TEST(Factors, HalfTheScoreMakesSiluOneSpecialFunctionAndOneFusedProduct) {
  for (const char* text : {"silu", "s * sigmoid(s)"}) {
    const FactoredPrograms programs = fast(text);
    EXPECT_EQ(programs.score_factor, 0.5) << text;
    EXPECT_EQ(count(programs.value, Operation::multiply), 1) << text;
    EXPECT_EQ(count(programs.value, Operation::add), 1) << text;
  }
}

TEST(Factors, TheConstantOfAnExponentialGoesIntoTheScale) {
  const FactoredPrograms programs = fast("sigmoid");
  EXPECT_DOUBLE_EQ(programs.score_factor, 1 / std::log(2.0));
  EXPECT_EQ(count(programs.value, Operation::multiply), 0);
}

TEST(Factors, ASquareAndABoundTakeTheirsToo) {
  const FactoredPrograms programs = fast("gelu_tanh");
  EXPECT_EQ(programs.score_factor, 0.5);
  EXPECT_EQ(count(programs.value, Operation::multiply), 4);  // two of them fused with a sum
  EXPECT_NEAR(evaluate(programs.value, 0.5 * -1.5)[0], Activation("gelu_tanh").value(-1.5), 1e-15);
}

TEST(Factors, AreOneWhereNothingIsSaved) {
  for (const char* text : {"relu", "identity", "tanh", "softplus"}) EXPECT_EQ(fast(text).score_factor, 1) << text;
}

TEST(Factors, OfANegativeBoundExchangeItsSides) {
  Tree tree;
  const NodeId negative = tree.negate(tree.multiply(tree.number(3), tree.score()));
  const NodeId bounded = tree.minimum(negative, tree.number(2));
  const NodeId value = tree.multiply(bounded, tree.make(Operation::tanh, tree.multiply(tree.number(3), tree.score())));
  const FactoredPrograms programs = factor(tree, value, value, value);
  EXPECT_EQ(programs.score_factor, 3);
  for (double s = -4; s < 4; s += 0.3) {
    EXPECT_NEAR(evaluate(programs.value, 3 * s)[0], std::fmin(-3 * s, 2) * std::tanh(3 * s), 1e-14) << s;
  }
}

}  // namespace
}  // namespace gdpa::activation
