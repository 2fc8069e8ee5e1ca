// The CPU backend keeps its promise of accuracy on random problems over every option, forward and backward, writes
// every element of every result, and nothing else.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "api/checks.h"
#include "cpu/backend.h"
#include "plan/cpu_units.h"
#include "promise.h"
#include "random_expression.h"
#include "random_problem.h"

namespace gdpa::test {
namespace {

std::uint64_t problem_count() {
  const char* asked = std::getenv("GDPA_FUZZ_PROBLEMS");
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : 2000;
}

/// `run(problem, grad_output, results)` computes the output and the wanted gradients.
template <class Run>
void check(std::uint64_t seed, const Given& given, const Run& run) {
  RandomProblem problem(seed, given);
  SCOPED_TRACE(fmt::format("seed {}: {}", seed, problem.describe()));
  Strided grad_output = problem.grad_output();
  Results results(problem);
  run(problem, grad_output, results);
  expect_promise(problem, grad_output, results);
}

/// The gradients of the floating tensors that the score reads.
std::vector<ParameterGradient> gradient_views(RandomProblem& problem, Results& results) {
  std::vector<ParameterGradient> views;
  for (std::size_t i = 0; i < problem.tensors().size(); ++i) {
    const DrawnTensor& tensor = problem.tensors()[i];
    if (tensor.is_floating) views.push_back({tensor.name, results.grad_tensors[i].mutable_view()});
  }
  return views;
}

void run_call(RandomProblem& problem, Strided& grad_output, Results& results) {
  forward(problem.attention(), results.output.mutable_view());
  const WantedGradients& wanted = problem.wanted();
  backward(problem.attention(), grad_output.view(), gradient_view(wanted.query, results.grad_query),
           gradient_view(wanted.key, results.grad_key), gradient_view(wanted.value, results.grad_value),
           gradient_views(problem, results));
}

TEST(CpuFuzz, random_problems_agree_with_the_definition) {
  for (std::uint64_t seed = 0; seed < problem_count() && !HasFailure(); ++seed) check(seed, {}, run_call);
}

/// Half of the problems have a mask expression or a score that reads tensors.
TEST(CpuFuzz, random_layouts_agree_with_the_definition) {
  constexpr std::array layouts = {DrawnLayout::batch_map, DrawnLayout::overlapping_keys, DrawnLayout::output_offsets};
  const std::uint64_t count = std::max<std::uint64_t>(problem_count() * 5 / 6, 1);
  for (std::uint64_t seed = 5'000'000; seed < 5'000'000 + count && !HasFailure(); ++seed) {
    Given given{.layout = layouts[seed % layouts.size()]};
    if (seed % 4 == 1) given.mask = seed;
    if (seed % 4 == 2) given.score = seed;
    check(seed, given, run_call);
  }
}

/// Problems without a backward may have pages.
TEST(CpuFuzz, random_forward_problems_agree_with_the_definition) {
  for (std::uint64_t seed = 4'000'000; seed < 4'000'000 + problem_count() / 2 && !HasFailure(); ++seed) {
    check(seed, {.is_forward_only = true}, [](RandomProblem& problem, Strided&, Results& results) {
      forward(problem.attention(), results.output.mutable_view());
    });
  }
}

TEST(CpuFuzz, problems_that_add_the_query_agree_with_the_definition) {
  for (std::uint64_t seed = 5'000'000; seed < 5'000'000 + problem_count() / 16 && !HasFailure(); ++seed) {
    check(seed, {.adds_query = true}, run_call);
  }
}

/// In 16 bits: the promise for fp32 is relative to PyTorch's own error there, which a steep function makes large.
TEST(CpuFuzz, random_functions_and_scales_agree_with_the_definition) {
  for (std::uint64_t seed = 2'000'000; seed < 2'000'000 + problem_count() / 8 && !HasFailure(); ++seed) {
    const DrawnFunction function = RandomExpression(seed).function();
    SCOPED_TRACE(function.text);
    const DType dtype = seed % 2 == 0 ? DType::bfloat16 : DType::float16;
    check(seed, {.dtype = dtype, .drawn = function, .draws_scale = true}, run_call);
  }
}

/// Scores are smooth in fp32 and fp64, for the reason above.
TEST(CpuFuzz, random_scores_with_tensors_agree_with_the_definition) {
  for (std::uint64_t seed = 3'000'000; seed < 3'000'000 + problem_count() && !HasFailure(); ++seed) {
    const bool is_16_bit = seed % 3 != 0;
    const DrawnFunction function = RandomExpression(seed).function();
    const DType dtype = seed % 3 == 1 ? DType::bfloat16 : DType::float16;
    check(seed, is_16_bit ? Given{.dtype = dtype, .drawn = function, .score = seed} : Given{.score = seed}, run_call);
  }
}

/// The problems have every layout. Every third one also has a score that reads positions and tensors. Problems without
/// a backward may have pages.
TEST(CpuFuzz, random_masks_agree_with_the_definition) {
  for (std::uint64_t seed = 4'000'000; seed < 4'000'000 + problem_count() && !HasFailure(); ++seed) {
    check(seed, seed % 3 == 0 ? Given{.score = seed, .mask = seed} : Given{.mask = seed}, run_call);
  }
  for (std::uint64_t seed = 5'000'000; seed < 5'000'000 + problem_count() / 6 && !HasFailure(); ++seed) {
    check(seed, {.is_forward_only = true, .mask = seed}, [](RandomProblem& problem, Strided&, Results& results) {
      forward(problem.attention(), results.output.mutable_view());
    });
  }
}

/// Small budgets bring the cuts that only very long sequences need to problems of every shape.
TEST(CpuFuzz, every_cut_of_the_work_agrees_with_the_definition) {
  std::array<int, 3> cuts = {};
  for (std::uint64_t seed = 1'000'000; seed < 1'000'000 + problem_count() / 2 && !HasFailure(); ++seed) {
    plan::Processor processor{2, 1 << 20};
    processor.thread_cost = 1;
    processor.cache_bytes = seed % 3 == 0 ? 1 << 20 : 1 << 14;
    processor.held_bytes = seed % 2 == 0 ? 8 << 20 : 1 << 12;
    processor.partial_bytes = std::array<int64_t, 4>{32 << 20, 1 << 18, 1 << 14, 0}[seed % 4];
    check(seed, {}, [&](RandomProblem& problem, Strided& grad_output, Results& results) {
      const Attention attention = problem.attention();
      const activation::Function& function = attention.activation.function();
      const CheckedCall forward = api::check_forward(attention, results.output.mutable_view());
      cpu::run(forward.problem, forward.params, function, nullptr, processor);
      const WantedGradients& wanted = problem.wanted();
      const CheckedCall backward = api::check_backward(
          attention, {grad_output.view(), gradient_view(wanted.query, results.grad_query),
                      gradient_view(wanted.key, results.grad_key), gradient_view(wanted.value, results.grad_value)});
      cpu::run(backward.problem, backward.params, function, nullptr, processor);
      const plan::CpuSchedule schedule = plan::schedule_for_cpu(backward.problem, backward.params, processor);
      ++cuts[static_cast<std::size_t>(schedule.cut)];
    });
  }
  for (int count : cuts) EXPECT_GT(count * 20, static_cast<int>(problem_count() / 2)) << "a cut is hardly tested";
}

}  // namespace
}  // namespace gdpa::test
