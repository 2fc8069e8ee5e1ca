// Functions are made once per text and shared, by any number of threads at once, in bounded memory.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "expression/function.h"
#include "expression/parser.h"
#include "gdpa/activation.h"

namespace {

using gdpa::Activation;

TEST(Interning, EqualTextsShareOneFunction) {
  const Activation one("s * sigmoid(1.7 * s)");
  EXPECT_EQ(&Activation("s * sigmoid(1.7 * s)").function(), &one.function());
  EXPECT_EQ(&Activation("s*sigmoid(1.70*s)").function(), &one.function());
  EXPECT_NE(&Activation("s*sigmoid(1.71*s)").function(), &one.function());
  const Activation bound("a * s", {{"a", 2}});
  EXPECT_EQ(&Activation("a*s with a=2").function(), &bound.function());
  EXPECT_NE(&Activation("a * s", {{"a", 3}}).function(), &bound.function());
}

TEST(Interning, ThreadsThatRaceGetTheSameFunctions) {
  constexpr int texts = 200;
  std::vector<std::vector<const gdpa::activation::Function*>> seen(8);
  std::vector<std::thread> threads;
  for (auto& mine : seen) {
    threads.emplace_back([&mine] {
      for (int i = 0; i < texts; ++i) mine.push_back(&Activation("tanh(s * " + std::to_string(i) + ")").function());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : seen) EXPECT_EQ(mine, seen[0]);
}

TEST(Interning, ForgetsRatherThanGrowsWithoutEnd) {
  namespace activation = gdpa::activation;
  const std::weak_ptr<const activation::Function> first =
      activation::Function::make("s + 0.456", {}, {}, activation::Form::number);
  EXPECT_FALSE(first.expired());
  for (int i = 0; i < 3000; ++i) Activation("s - a", {{"a", i}});
  EXPECT_TRUE(first.expired());
}

TEST(Interning, AHandleOutlivesTheTableThatForgets) {
  const Activation kept("s + 0.123");
  for (int i = 0; i < 3000; ++i) Activation("s + a", {{"a", i}});
  EXPECT_EQ(kept.value(1), 1.123);
  EXPECT_EQ(Activation("s + 0.123").text(), kept.text());
}

}  // namespace
