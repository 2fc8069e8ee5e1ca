// The CPU backend keeps its promise of accuracy on random problems over every option, forward and backward, writes
// every element of every result, and nothing else.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "api/checks.h"
#include "cpu/backend.h"
#include "plan/cpu_units.h"
#include "random_problem.h"

namespace gdpa::test {
namespace {

double relative_bound(DType dtype) {
  switch (dtype) {
    case DType::bfloat16:
      return 3e-3;
    case DType::float16:
      return 6e-4;
    case DType::float32:
      return 2e-6;
    default:
      return 1e-13;
  }
}

double rounded(DType dtype, double value) {
  std::array<std::byte, 8> stored;
  from_double(dtype, value, stored.data());
  return to_double(dtype, stored.data());
}

struct Distance {
  double error = 0;
  double norm = 0;
};

/// 2-norms over the first `count` elements, the values rounded to the type.
Distance distance(DType dtype, const std::vector<double>& values, const std::vector<double>& expected,
                  std::size_t count) {
  Distance sums;
  for (std::size_t i = 0; i < count; ++i) {
    const double difference = rounded(dtype, values[i]) - expected[i];
    sums.error += difference * difference;
    sums.norm += expected[i] * expected[i];
  }
  return {std::sqrt(sums.error), std::sqrt(sums.norm)};
}

/// The promise of the documentation: the error is at most twice the larger of c times the norm of the result and the
/// error of the same computation in the same type. The latter, with P rounded, counts where a result is a small
/// difference of large terms.
void expect_near(Strided& result, const Dense& exact, const Dense& same_type, int64_t written, const char* what) {
  EXPECT_TRUE(result.rest_is_poisoned()) << what;
  const std::vector<double> values = result.values();
  ASSERT_EQ(values.size(), exact.values.size()) << what;
  const auto count = static_cast<std::size_t>(written * exact.heads * exact.width);
  const DType dtype = result.dtype();
  const Distance actual = distance(dtype, values, exact.values, count);
  const Distance allowed = distance(dtype, same_type.values, exact.values, count);
  EXPECT_LE(actual.error, 2 * std::max(relative_bound(dtype) * actual.norm, allowed.error))
      << what << ": relative error " << actual.error / actual.norm;
  for (std::size_t i = count; i < values.size(); ++i) {
    ASSERT_EQ(values[i], 0.0) << what << ": element " << i << " belongs to no sequence";
  }
}

std::uint64_t problem_count() {
  const char* asked = std::getenv("GDPA_FUZZ_PROBLEMS");
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : 2000;
}

struct Results {
  Strided output, grad_query, grad_key, grad_value;
};

/// `run(problem, grad_output, results)` computes all four results.
template <class Run>
void check(std::uint64_t seed, const Run& run) {
  RandomProblem problem(seed);
  SCOPED_TRACE(fmt::format("seed {}: {}", seed, problem.describe()));
  Strided grad_output = problem.grad_output();
  Results results{problem.new_output(), problem.new_grad_query(), problem.new_grad_key(), problem.new_grad_value()};
  run(problem, grad_output, results);
  Reference reference = problem.reference();
  const Dense grad = RandomProblem::dense(grad_output, problem.heads_q(), problem.head_dim_v());
  const Dense output = reference_output(reference);
  const ReferenceGradients exact = reference_gradients(reference, grad);
  Dense rounded_output = output;
  ReferenceGradients same_type = exact;
  if (size_in_bytes(problem.dtype()) == 2) {
    reference.round = [&](double value) { return rounded(problem.dtype(), value); };
    rounded_output = reference_output(reference);
    same_type = reference_gradients(reference, grad);
  }
  expect_near(results.output, output, rounded_output, problem.written_output_rows(), "O");
  expect_near(results.grad_query, exact.query, same_type.query, problem.written_query_rows(), "dQ");
  expect_near(results.grad_key, exact.key, same_type.key, problem.written_key_rows(), "dK");
  expect_near(results.grad_value, exact.value, same_type.value, problem.written_key_rows(), "dV");
}

TEST(CpuFuzz, random_problems_agree_with_the_definition) {
  for (std::uint64_t seed = 0; seed < problem_count() && !HasFailure(); ++seed) {
    check(seed, [](RandomProblem& problem, Strided& grad_output, Results& results) {
      forward(problem.attention(), results.output.mutable_view());
      backward(problem.attention(), grad_output.view(), results.grad_query.mutable_view(),
               results.grad_key.mutable_view(), results.grad_value.mutable_view());
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
    check(seed, [&](RandomProblem& problem, Strided& grad_output, Results& results) {
      const Attention attention = problem.attention();
      const activation::Function& function = attention.activation.function();
      const api::CheckedCall forward = api::check_forward(attention, results.output.mutable_view());
      cpu::run(forward.problem, forward.params, function, processor);
      const api::CheckedCall backward =
          api::check_backward(attention, {grad_output.view(), results.grad_query.mutable_view(),
                                          results.grad_key.mutable_view(), results.grad_value.mutable_view()});
      cpu::run(backward.problem, backward.params, function, processor);
      plan::CpuSchedule schedule;
      plan::schedule_for_cpu(backward.problem, backward.params, processor, schedule);
      ++cuts[static_cast<std::size_t>(schedule.cut)];
    });
  }
  for (int count : cuts) EXPECT_GT(count * 20, static_cast<int>(problem_count() / 2)) << "a cut is hardly tested";
}

}  // namespace
}  // namespace gdpa::test
