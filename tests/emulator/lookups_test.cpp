// The gradient of a lookup in tiles that read one or two adjacent elements of it, which Hopper's backward adds up in
// two registers of each thread (kernels/hopper/backward_gradients.cuh). Times rise along the sequences, and the
// difference of two times is close to a power of 2. The results must follow the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "definition.h"

namespace gdpa::test {
namespace {

/// Buckets of times with `seconds` between two rows. The first query has time `first_query`, and the first key has time
/// 2^20 - `first_query`.
ScoreCase two_buckets(double seconds, Mask mask, double first_query = 0) {
  const ScoreSide queries = {Form::jagged, {150, 0, 333}}, keys = {Form::jagged, {300, 5, 229}};
  const auto times_from = [&](double first, const ScoreSide& side) {
    std::vector<double> times;
    for (int64_t row = 0; row < side.rows(); ++row) times.push_back(first + seconds * static_cast<double>(row));
    return times;
  };
  return {.name = "two_buckets",
          .text = "tanh(s + w[head, clamp(floor(log2(1 + abs(t_q[q_row] - t_k[kv_row]))), 0, 63)])",
          .tensors = {{"w", DType::bfloat16, {2, 64}},
                      {"t_q", DType::int64, {queries.rows()}, times_from(first_query, queries)},
                      {"t_k", DType::int64, {keys.rows()}, times_from(0x1p20 - first_query, keys)}},
          .inputs =
              [](const ScoreProblem& problem, const Place& at) {
                const double apart = std::fabs(problem.number(1, at.row_q) - problem.number(2, at.row_k));
                const auto bucket = std::min<int64_t>(static_cast<int64_t>(std::log2(1 + apart)), 63);
                const int64_t element = at.head * 64 + bucket;
                return ScoreInputs{1, problem.number(0, element), {{0, element, false}}};
              },
          .queries = queries,
          .keys = keys,
          .head_dim = 128,
          .mask = mask};
}

void expect_gradients(const ScoreCase& of) {
  const ScoreResults results = expect_definition(of);
  EXPECT_NE(results.gradient_kernel.find("hopper: backward"), std::string::npos) << results.gradient_kernel;
}

TEST(Lookups, GradientsOfFallingEntriesFollowTheDefinition) { expect_gradients(two_buckets(10, {})); }

TEST(Lookups, GradientsOfRisingEntriesFollowTheDefinition) { expect_gradients(two_buckets(10, {}, 0x1p20)); }

TEST(Lookups, MaskedScoresAddNothing) { expect_gradients(two_buckets(10, Mask::causal())); }

/// The entries of the tiles of a key tile change often, so that the sums of a thread go to memory and begin again.
TEST(Lookups, SumsBeginAgainWithOtherElements) { expect_gradients(two_buckets(20'000, {})); }

}  // namespace
}  // namespace gdpa::test
