// gdpa::compile fills the kernel cache without a GPU, for a named architecture, and reports its kernels.
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gdpa/gdpa.h"
#include "with_compiler.h"

namespace gdpa {
namespace {

class CompileAhead : public WithCompiler {
 protected:
  /// Shapes alone, in host memory, as someone without a GPU describes them.
  static Attention problem(DType dtype, int64_t head_dim, Device device = {}) {
    const auto operand = TensorView::contiguous(nullptr, dtype, {8, 100, 4, head_dim}, device);
    return {.query = operand, .key = operand, .value = operand, .activation = Activation("0.5 * s")};
  }
};

TEST_F(CompileAhead, MakesEveryKernelOfTheCallOnceAndFindsItAfterwards) {
  const Attention attention = problem(DType::bfloat16, 64);
  const std::vector<CompiledKernel> first =
      compile(attention, Direction::backward, {.architecture = "sm_90a", .lengths = Lengths::these});
  ASSERT_EQ(first.size(), 2U);  // the schedule, and backward
  for (const CompiledKernel& made : first) {
    EXPECT_FALSE(made.was_cached) << made.kernel.name;
    EXPECT_EQ(made.kernel.architecture, "sm_90a");
    EXPECT_EQ(made.image.substr(1, 3), "ELF");
    EXPECT_NE(made.source.find("__global__"), std::string::npos);
    EXPECT_GT(made.seconds, 0);
  }
  EXPECT_EQ(first[0].source.find("// 0.5 * s"), std::string::npos);  // the schedule does not depend on the function
  EXPECT_NE(first[1].source.find("// 0.5 * s"), std::string::npos);
  for (const CompiledKernel& made :
       compile(attention, Direction::backward, {.architecture = "sm_90", .lengths = Lengths::these})) {
    EXPECT_TRUE(made.was_cached) << made.kernel.name;
  }
}

TEST_F(CompileAhead, NamesTheKernelThatTheCallWillRunThoughThereIsNoOutputYet) {
  const Attention attention = problem(DType::bfloat16, 64);
  EXPECT_EQ(
      compile(attention, Direction::forward, {.architecture = "sm_90a"})[0].kernel.name.rfind("hopper: forward", 0),
      0U);
  EXPECT_EQ(explain(attention, Direction::forward, "sm_90a").kernel.rfind("hopper: forward", 0), 0U);
  EXPECT_EQ(explain(attention, Direction::forward, "sm_80").kernel.rfind("portable: forward", 0), 0U);
}

TEST_F(CompileAhead, LengthsAndTheirNumberDoNotChangeTheKernels) {
  Attention attention = problem(DType::float16, 32);
  const std::string image = compile(attention, Direction::forward, {.architecture = "sm_80"})[0].image;
  for (TensorView* view : {&attention.query, &attention.key, &attention.value}) {
    *view = TensorView::contiguous(nullptr, DType::float16, {3, 7777, 4, 32});
  }
  const CompiledKernel again = compile(attention, Direction::forward, {.architecture = "sm_80"})[0];
  EXPECT_TRUE(again.was_cached);
  EXPECT_EQ(again.image, image);
}

TEST_F(CompileAhead, CompilesTheKernelsOfOtherLengthsToo) {
  Attention attention = problem(DType::bfloat16, 64);
  const auto names_of = [&](Lengths lengths) {
    std::set<std::string> names;
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      const CompileOptions options{.architecture = "sm_90a", .lengths = lengths};
      for (const CompiledKernel& made : compile(attention, direction, options)) names.insert(made.kernel.name);
    }
    return names;
  };
  const std::set<std::string> ahead = names_of(Lengths::any);
  for (const int64_t length : {1, 64, 100, 300, 600, 2000}) {
    for (TensorView* view : {&attention.query, &attention.key, &attention.value}) {
      *view = TensorView::contiguous(nullptr, DType::bfloat16, {3, length, 4, 64});
    }
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      const CompileOptions options{.architecture = "sm_90a", .lengths = Lengths::these};
      for (const CompiledKernel& made : compile(attention, direction, options)) {
        EXPECT_TRUE(ahead.contains(made.kernel.name)) << made.kernel.name;
        EXPECT_TRUE(made.was_cached) << made.kernel.name << ", length " << length;
      }
    }
  }
}

TEST_F(CompileAhead, BeginsWithTheKernelsOfTheCallItself) {
  const Attention attention = problem(DType::bfloat16, 64);
  const auto any = compile(attention, Direction::forward, {.architecture = "sm_90a"});
  const auto these = compile(attention, Direction::forward, {.architecture = "sm_90a", .lengths = Lengths::these});
  ASSERT_EQ(these.size(), 1U);
  ASSERT_GT(any.size(), 1U);
  EXPECT_EQ(any[0].kernel.name, these[0].kernel.name);
  EXPECT_GT(any[0].kernel.ctas, 0);
  EXPECT_EQ(any[1].kernel.ctas, 0);
}

TEST_F(CompileAhead, TellsItsProgressAndIsStoppedByAnException) {
  const Attention attention = problem(DType::bfloat16, 64);
  std::vector<std::pair<int64_t, int64_t>> calls;
  CompileOptions options{.architecture = "sm_90a"};
  options.progress = [&](int64_t done, int64_t total) { calls.emplace_back(done, total); };
  const auto total = static_cast<int64_t>(compile(attention, Direction::forward, options).size());
  ASSERT_EQ(static_cast<int64_t>(calls.size()), total + 1);
  for (int64_t i = 0; i <= total; ++i) EXPECT_EQ(calls[static_cast<std::size_t>(i)], std::pair(i, total));

  int64_t last = 0;
  options.progress = [&](int64_t done, int64_t) {
    last = done;
    if (done == 1) throw std::runtime_error("stop");
  };
  EXPECT_THROW(compile(attention, Direction::forward, options), std::runtime_error);
  EXPECT_LT(last, total);
}

TEST_F(CompileAhead, InAThreadOfItsOwnGivesTheSameKernelsAndErrors) {
  auto kernels = compile_async(problem(DType::bfloat16, 64), Direction::forward, {.architecture = "sm_90a"});
  EXPECT_EQ(kernels.get().size(),
            compile(problem(DType::bfloat16, 64), Direction::forward, {.architecture = "sm_90a"}).size());
  auto refused = compile_async(problem(DType::bfloat16, 60), Direction::forward, {.architecture = "sm_90a"});
  EXPECT_THROW(refused.get(), Error);
}

TEST_F(CompileAhead, OnTheCpuThereIsNothingToCompile) {
  EXPECT_TRUE(compile(problem(DType::float64, 3), Direction::forward).empty());
}

TEST_F(CompileAhead, RefusesWhatTheGpuCannotDoAndUnknownArchitectures) {
  EXPECT_THROW(compile(problem(DType::float64, 64), Direction::forward, {.architecture = "sm_90a"}), Error);
  EXPECT_THROW(compile(problem(DType::float32, 60), Direction::forward, {.architecture = "sm_90a"}), Error);
  EXPECT_THROW(compile(problem(DType::float32, 64), Direction::forward, {.architecture = "sm_75"}), Error);
  EXPECT_THROW(explain(problem(DType::float64, 64), Direction::forward, "sm_90a"), Error);
}

TEST_F(CompileAhead, ExplainsAPlanForAGpuThatIsNotThere) {
  const Plan plan = explain(problem(DType::bfloat16, 128), Direction::forward, "sm_80");
  ASSERT_EQ(plan.kernels.size(), 1U);
  EXPECT_EQ(plan.kernels[0].architecture, "sm_80");
  EXPECT_EQ(plan.threads, plan.kernels[0].threads);
  EXPECT_EQ(plan.flops, 2.0 * 4 * 256 * 8 * 100 * 100);
}

}  // namespace
}  // namespace gdpa
