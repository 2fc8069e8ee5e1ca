// FunctionFacts: what plans know about a function.
#include "expression/function.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "expression/function.h"
#include "gdpa/activation.h"

namespace gdpa::activation {
namespace {

FunctionFacts facts(const std::string& text, const std::vector<std::string>& tensors = {}) {
  return Activation(text, {}, tensors).function().facts();
}

TEST(FunctionFacts, AFunctionOfTheScoreAloneReadsNothing) {
  const FunctionFacts of = facts("silu");
  EXPECT_EQ(of.reads, 0);
  EXPECT_EQ(of.reads_of_lines(), 0);
  EXPECT_FALSE(of.reads_numbers);
  EXPECT_TRUE(of.reads_only_numbers);
  EXPECT_FALSE(of.reads_query_position);
}

TEST(FunctionFacts, EachDifferentElementIsARead) {
  const FunctionFacts of =
      facts("silu(s + a[head, q_idx - kv_idx] + b[kv_idx] + c[q_idx] + d[head] + b[kv_idx])", {"a", "b", "c", "d"});
  EXPECT_EQ(of.reads, 4);
  EXPECT_EQ(of.reads_of_keys, 1);
  EXPECT_EQ(of.reads_of_differences, 1);
  EXPECT_EQ(of.reads_of_lines(), 2);
  EXPECT_FALSE(of.reads_numbers);
  EXPECT_FALSE(of.reads_only_numbers);
}

TEST(FunctionFacts, ANumberIsATensorWithoutAnIndex) {
  EXPECT_TRUE(facts("a * tanh(b * s)", {"a", "b"}).reads_only_numbers);
  EXPECT_TRUE(facts("a * tanh(b * s)", {"a", "b"}).reads_numbers);
  EXPECT_EQ(facts("a * tanh(b * s)", {"a", "b"}).reads, 0);
  EXPECT_TRUE(facts("a * silu(s) + t[head]", {"a", "t"}).reads_numbers);
  EXPECT_FALSE(facts("a * silu(s) + t[head]", {"a", "t"}).reads_only_numbers);
  EXPECT_FALSE(facts("silu(s) * head").reads_numbers);
  EXPECT_FALSE(facts("silu(s) * head").reads_only_numbers);
}

TEST(FunctionFacts, WhatDependsOnTheQueryMayStandInAnIndex) {
  for (const char* text : {"silu(s) + q_idx", "silu(s) / len_q", "silu(s) * batch", "silu(s + t[q_row])",
                           "silu(s) * t[min(len_q, 3)]", "s * t[t[batch]]"}) {
    const bool has_tensor = std::string(text).find("t[") != std::string::npos;
    EXPECT_TRUE(
        facts(text, has_tensor ? std::vector<std::string>{"t"} : std::vector<std::string>{}).reads_query_position)
        << text;
  }
  for (const char* text : {"silu(s) + kv_idx", "silu(s) / len_k", "silu(s) * head"}) {
    EXPECT_FALSE(facts(text).reads_query_position) << text;
  }
  EXPECT_FALSE(facts("silu(s + t[head, kv_row])", {"t"}).reads_query_position);
}

TEST(FunctionFacts, OnlyGuardsThatDoNotDependOnInputsAreRemovable) {
  EXPECT_TRUE(facts("gelu").has_removable_guards);
  EXPECT_FALSE(facts("relu").has_removable_guards);
  EXPECT_TRUE(facts("gelu(s + t[kv_idx])", {"t"}).has_removable_guards) << "the guards are of the sum";
  EXPECT_FALSE(facts("gelu(s) * t[kv_idx]", {"t"}).has_removable_guards);
}

TEST(FunctionFacts, BoundsOfScoresAreFoundInASumAndInEachFunctionOfAList) {
  EXPECT_TRUE(facts("gelu").bounds_scores);
  EXPECT_TRUE(facts("gelu(s + t[kv_idx])", {"t"}).bounds_scores);
  EXPECT_TRUE(facts("relu; gelu").bounds_scores);
  EXPECT_FALSE(facts("relu; leaky_relu").bounds_scores);
}

TEST(FunctionFacts, TheDegreeIsThatOfAHomogeneousFunction) {
  EXPECT_EQ(facts("relu2").degree, 2.0);
  EXPECT_EQ(facts("gelu").degree, std::nullopt);
}

TEST(FunctionFacts, SomeLongStepsHaveAShortFastForm) {
  for (const char* text : {"gelu", "softplus", "sin(s)"}) {
    EXPECT_TRUE(facts(text).has_long_steps(Accuracy::exact)) << text;
    EXPECT_FALSE(facts(text).has_long_steps(Accuracy::fast)) << text;
  }
  EXPECT_TRUE(facts("log1p(abs(s))").has_long_steps(Accuracy::fast));
  EXPECT_TRUE(facts("log1p(abs(s))").has_long_steps(Accuracy::exact));
  EXPECT_FALSE(facts("silu").has_long_steps(Accuracy::exact));
}

TEST(FunctionFacts, AreComputedOnce) {
  const Activation activation("gelu");
  EXPECT_EQ(&activation.function().facts(), &activation.function().facts());
}

}  // namespace
}  // namespace gdpa::activation
