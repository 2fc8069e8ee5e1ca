// The first pass of Hopper's kernels leaves out the guards of great scores, and finds the tiles that need the second
// pass by results that are not finite (Pass in arguments.cuh). One score needs a guard, in each row of a tile in turn:
// of O, and of dK and dV. Without the second pass, the row is NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "device.h"
#include "gdpa/attention.h"
#include "on_device.h"
#include "reference.h"
#include "strided.h"

namespace gdpa::test {
namespace {

constexpr int64_t head_dim = 64;
constexpr std::size_t guard = 256;

/// A score that needs a guard. Only the rows of its query and its key have a first element.
struct GuardedScore {
  int64_t query, key;
  double of_query, of_key;  ///< the first elements

  /// The score is -infinity in fp32, where f and f' are 0.
  static GuardedScore infinite(int64_t query, int64_t key) { return {query, key, -3e38, 1024}; }
  /// The score is so great that f' has the terms infinity times 0. f' is 1.
  static GuardedScore great(int64_t query, int64_t key) { return {query, key, 1e10, 1e11}; }
};

/// Sequences of equal lengths.
struct Sequences {
  int64_t queries, keys;
  std::vector<std::optional<GuardedScore>> scores;  ///< of each sequence

  int64_t batch() const { return static_cast<int64_t>(scores.size()); }
};

/// The operands of a problem, and the function.
struct GuardedProblem {
  static constexpr DType dtype = DType::bfloat16;

  explicit GuardedProblem(const Sequences& of) {
    std::mt19937_64 random(1);
    const auto drawn = [&](int64_t length) {
      Strided operand = Strided::contiguous(dtype, {of.batch(), length, 1, head_dim});
      operand.fill_normal(random);
      return operand;
    };
    query = drawn(of.queries);
    key = drawn(of.keys);
    value = drawn(of.keys);
    grad_output = drawn(of.queries);
    const auto set = [](Strided& operand, int64_t row, int64_t column, double number) {
      from_double(dtype, number, operand.bytes().data() + (row * head_dim + column) * size_in_bytes(dtype));
    };
    for (int64_t row = 0; row < of.batch() * of.queries; ++row) set(query, row, 0, 0);
    for (int64_t row = 0; row < of.batch() * of.keys; ++row) set(key, row, 0, 0);
    for (int64_t b = 0; b < of.batch(); ++b) {
      const std::optional<GuardedScore>& score = of.scores[static_cast<std::size_t>(b)];
      if (!score) continue;
      set(query, b * of.queries + score->query, 0, score->of_query);
      set(key, b * of.keys + score->key, 0, score->of_key);
    }
    attention.activation = Activation("gelu_tanh");
    attention.stream = Gpu::get().stream();
    reference.query = dense(query);
    reference.key = dense(key);
    reference.value = dense(value);
    reference.output_rows = of.batch() * of.queries;
    reference.scale = 1 / std::sqrt(static_cast<double>(head_dim));
    // 1 / 2 (1 + tanh(u)) is sigmoid(2 u).
    const double c = std::sqrt(2 / std::acos(-1.0));
    const auto gate = [c](double s) { return 1 / (1 + std::exp(-2 * c * (s + 0.044715 * s * s * s))); };
    reference.function = [gate](double s) { return s * gate(s); };
    reference.derivative = [c, gate](double s) {
      const double p = gate(s), level = p * (1 - p);
      return level == 0 ? p : p + s * level * 2 * c * (1 + 3 * 0.044715 * s * s);
    };
    for (int64_t b = 0; b < of.batch(); ++b) {
      reference.entries.push_back({b * of.queries, b * of.queries, b * of.keys, of.queries, of.keys});
    }
  }

  static Dense dense(Strided& operand) {
    const int64_t rows = operand.sizes()[0] * operand.sizes()[1];
    return {rows, 1, head_dim, operand.values()};
  }

  Strided query, key, value, grad_output;
  Attention attention;
  Reference reference;
};

/// Each row on its own, without the first element, which is great in some rows.
void expect_rows_near(Strided& result, const Dense& exact, const char* what) {
  const Dense computed = GuardedProblem::dense(result);
  const auto norm_of = [](const Dense& rows, int64_t row, const Dense* less) {
    double sum = 0;
    for (int64_t x = 1; x < head_dim; ++x) {
      sum += std::pow(rows.at(row, 0)[x] - (less == nullptr ? 0 : less->at(row, 0)[x]), 2);
    }
    return std::sqrt(sum);
  };
  std::vector<double> norms;
  for (int64_t row = 0; row < exact.rows; ++row) norms.push_back(norm_of(exact, row, nullptr));
  std::vector<double> in_order = norms;
  std::nth_element(in_order.begin(), in_order.begin() + exact.rows / 2, in_order.end());
  const double usual = in_order[static_cast<std::size_t>(exact.rows / 2)];
  constexpr double promised = 6e-3;  // of docs/accuracy.md, in bfloat16, for all rows together
  for (int64_t row = 0; row < exact.rows; ++row) {
    const double norm = std::max(usual, norms[static_cast<std::size_t>(row)]);
    ASSERT_LE(norm_of(computed, row, &exact), 2 * promised * norm) << what << ", row " << row;
  }
}

/// Sets the number of CTAs that the emulator runs at the same time. The planner asks for the number once.
void set_multiprocessors(int64_t count) { setenv("GDPA_EMULATED_MULTIPROCESSORS", std::to_string(count).c_str(), 1); }

/// A CTA of forward says in memory of its own whether one of its tiles has NaN. CTAs run one after the other here, so
/// that a CTA that writes to the memory of an earlier one would undo what that one has found. Every second CTA has a
/// score that needs a guard: in its only tile, as in a small problem on a GPU, or in the first one of two.
TEST(GuardedScores, AreFoundInEachRowOfATileOfForwardByTheCtaOfTheTile) {
  constexpr int64_t ctas = 132, tile_queries = 128, rows = tile_queries / 2, keys = 24;
  for (const int64_t tiles_of_cta : {1, 2}) {
    set_multiprocessors(ctas);
    const int64_t batch = ctas * tiles_of_cta, first_row = (tiles_of_cta - 1) * rows;
    Sequences sequences{tile_queries, keys, {}};
    sequences.scores.resize(static_cast<std::size_t>(batch));
    for (int64_t row = 0; row < rows; ++row) {
      const auto cta = static_cast<std::size_t>(2 * row * tiles_of_cta);
      sequences.scores[cta] = GuardedScore::infinite(first_row + row, row % keys);
    }
    GuardedProblem problem(sequences);
    Strided output = Strided::contiguous(GuardedProblem::dtype, {batch, tile_queries, 1, head_dim});
    OnDevice device(Gpu::get(), guard);
    Attention& attention = problem.attention;
    attention.query = device.input(problem.query);
    attention.key = device.input(problem.key);
    attention.value = device.input(problem.value);
    const MutableTensorView result = device.output(output);
    attention.workspace = device.workspace(workspace_bytes(attention, Direction::forward));
    set_multiprocessors(1);
    ASSERT_GE(attention.workspace.bytes, ctas * static_cast<int64_t>(sizeof(int)));
    forward(attention, result);
    device.fetch({&output});
    expect_rows_near(output, reference_output(problem.reference), "O");
  }
}

TEST(GuardedScores, AreFoundInEachRowOfATileOfBackward) {
  constexpr int64_t queries = 64, keys = 128;
  for (int64_t row = 0; row < keys; row += row < 64 ? 1 : 5) {
    SCOPED_TRACE(testing::Message() << "key " << row);
    const int64_t query = 63 - row % queries;
    const GuardedScore score = row % 3 == 0 ? GuardedScore::infinite(query, row) : GuardedScore::great(query, row);
    GuardedProblem problem({queries, keys, {score}});
    Strided grad_query = Strided::contiguous(GuardedProblem::dtype, {1, queries, 1, head_dim}),
            grad_key = Strided::contiguous(GuardedProblem::dtype, {1, keys, 1, head_dim}), grad_value = grad_key;
    OnDevice device(Gpu::get(), guard);
    Attention& attention = problem.attention;
    attention.query = device.input(problem.query);
    attention.key = device.input(problem.key);
    attention.value = device.input(problem.value);
    backward(attention, device.input(problem.grad_output), device.output(grad_query), device.output(grad_key),
             device.output(grad_value));
    device.fetch({&grad_query, &grad_key, &grad_value});
    const ReferenceGradients exact = reference_gradients(problem.reference, GuardedProblem::dense(problem.grad_output));
    expect_rows_near(grad_query, exact.query, "dQ");
    expect_rows_near(grad_key, exact.key, "dK");
    expect_rows_near(grad_value, exact.value, "dV");
  }
}

}  // namespace
}  // namespace gdpa::test
