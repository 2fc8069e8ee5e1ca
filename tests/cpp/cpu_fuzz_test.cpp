// The CPU backend keeps its promise of accuracy on random problems over every option, forward and backward, writes
// every element of every result, and nothing else.
#include <gtest/gtest.h>

#include <cstdlib>

#include "random_problem.h"

namespace gdpa::test {
namespace {

/// The promise of the documentation: the 2-norm of the error is at most twice c times the norm of the reference.
/// Without the twice it could not hold for a result of one element, which alone may be rounded by 3.9e-3 in bf16.
double promise(DType dtype) {
  switch (dtype) {
    case DType::bfloat16:
      return 2 * 3e-3;
    case DType::float16:
      return 2 * 6e-4;
    case DType::float32:
      return 2 * 2e-6;
    default:
      return 1e-13;
  }
}

/// Rows below `written` are near the reference, the others zeros; all memory around them holds the poison still.
void expect_near(Strided& result, const Dense& expected, int64_t written, const char* what) {
  EXPECT_TRUE(result.rest_is_poisoned()) << what;
  const std::vector<double> values = result.values();
  ASSERT_EQ(values.size(), expected.values.size()) << what;
  const auto count = static_cast<std::size_t>(written * expected.heads * expected.width);
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < count; ++i) {
    error += (values[i] - expected.values[i]) * (values[i] - expected.values[i]);
    norm += expected.values[i] * expected.values[i];
  }
  EXPECT_LE(std::sqrt(error), promise(result.dtype()) * std::sqrt(norm))
      << what << ": relative error " << std::sqrt(error / norm);
  for (std::size_t i = count; i < values.size(); ++i) {
    ASSERT_EQ(values[i], 0.0) << what << ": element " << i << " belongs to no sequence";
  }
}

void check(std::uint64_t seed) {
  RandomProblem problem(seed);
  SCOPED_TRACE(fmt::format("seed {}: {}", seed, problem.describe()));
  const Reference reference = problem.reference();

  Strided output = problem.new_output();
  forward(problem.attention(), output.mutable_view());
  expect_near(output, reference_output(reference), problem.written_output_rows(), "O");

  Strided grad_output = problem.grad_output();
  const ReferenceGradients expected =
      reference_gradients(reference, RandomProblem::dense(grad_output, problem.heads_q(), problem.head_dim_v()));
  Strided grad_query = problem.new_grad_query();
  Strided grad_key = problem.new_grad_key();
  Strided grad_value = problem.new_grad_value();
  backward(problem.attention(), grad_output.view(), grad_query.mutable_view(), grad_key.mutable_view(),
           grad_value.mutable_view());
  expect_near(grad_query, expected.query, problem.written_query_rows(), "dQ");
  expect_near(grad_key, expected.key, problem.written_key_rows(), "dK");
  expect_near(grad_value, expected.value, problem.written_key_rows(), "dV");
}

TEST(CpuFuzz, random_problems_agree_with_the_definition) {
  const char* asked = std::getenv("GDPA_FUZZ_PROBLEMS");
  const std::uint64_t count = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 2000;
  for (std::uint64_t seed = 0; seed < count && !HasFailure(); ++seed) check(seed);
}

}  // namespace
}  // namespace gdpa::test
