// Lookups by the difference of two times. The results must follow the definition.
//
// The gradient of a lookup in tiles that read one element of it, which Hopper's backward adds up in a register of each
// thread, and in tiles that read two adjacent elements (kernels/hopper/backward_gradients.cuh). Times rise along the
// sequences, and the difference of two times is close to a power of 2.
//
// Milliseconds since 1970 over 1,157 days. Some differences are 0, 3 or 6 s, which fp32 does not have.
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

/// The milliseconds of a row. Its day does not depend on the rows before it.
double milliseconds_since_1970(int64_t row) {
  return 1'600'000'000'000.0 + static_cast<double>(row * 7919 % 1157 * 86'400'000 + row % 3 * 3000);
}

/// The bucket of a time difference, as an expression in `t` and as a function of its absolute value.
struct Bucket {
  std::string text;
  double (*of)(double apart);
};

/// No difference of these times is near the edge of one of its buckets, at which fp32 and fp64 differ.
const Bucket research_code{"log(max(1, abs(t))) / 0.301",
                           [](double apart) { return std::log(std::max(apart, 1.0)) / 0.301; }};
const Bucket octaves{"log2(1 + abs(t))", [](double apart) { return std::log2(1 + apart); }};

ScoreCase since_1970(const Bucket& bucket, DType dtype, int64_t head_dim) {
  const ScoreSide queries = {Form::jagged, {70, 0, 13}}, keys = {Form::jagged, {140, 5, 9}};
  const auto times_of = [&](const ScoreSide& side) {
    std::vector<double> times;
    for (int64_t row = 0; row < side.rows(); ++row) times.push_back(milliseconds_since_1970(row));
    return times;
  };
  std::string text = bucket.text;
  text.replace(text.find("abs(t)") + 4, 1, "t_q[q_row] - t_k[kv_row]");
  return {.name = "since_1970",
          .text = "tanh(s + w[head, clamp(floor(" + text + "), 0, 99)])",
          .tensors = {{"w", DType::bfloat16, {2, 100}},
                      {"t_q", DType::int64, {queries.rows()}, times_of(queries)},
                      {"t_k", DType::int64, {keys.rows()}, times_of(keys)}},
          .inputs =
              [of = bucket.of](const ScoreProblem& problem, const Place& at) {
                const double apart = std::fabs(problem.number(1, at.row_q) - problem.number(2, at.row_k));
                const int64_t element = at.head * 100 + static_cast<int64_t>(of(apart));
                return ScoreInputs{1, problem.number(0, element), {{0, element, false}}};
              },
          .queries = queries,
          .keys = keys,
          .dtype = dtype,
          .head_dim = head_dim};
}

TEST(Lookups, MillisecondsSince1970KeepTheirDifferences) {
  expect_gradients(since_1970(octaves, DType::bfloat16, 128));
}

TEST(Lookups, MillisecondsSince1970KeepTheirDifferencesInPortableKernels) {
  expect_definition(since_1970(research_code, DType::float32, 16));
}

}  // namespace
}  // namespace gdpa::test
