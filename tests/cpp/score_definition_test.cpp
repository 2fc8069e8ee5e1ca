// ScoreDefinition at random scores of random expressions that read positions and tensors, against independent code.
#include "gdpa/score.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gdpa/error.h"
#include "random_problem.h"

namespace gdpa {
namespace {

using test::DrawnTensor;
using test::Place;

constexpr int64_t batch = 2, heads = 3, length_q = 9, length_k = 13;
const test::ScoreSizes sizes{batch, heads, length_q, length_k, batch* length_q, batch* length_k};

test::DrawnFunction smooth_function(std::uint64_t seed) {
  const std::vector<test::NamedFunction>& all = test::smooth_functions();
  const test::NamedFunction& one = all[seed % all.size()];
  return {one.text, [one](test::Dual s) { return test::Dual{one.value(s.value), one.derivative(s.value) * s.slope}; }};
}

/// The element that a read means, by the documentation of gdpa::Parameter.
std::size_t element_of(const TensorRead& read, const DrawnTensor& tensor, const Place& place) {
  if (read.indices.empty()) return tensor.numbers.size() == 1 ? 0 : static_cast<std::size_t>(place.head);
  int64_t element = 0;
  for (std::size_t axis = 0; axis < read.indices.size(); ++axis) {
    const int64_t size = tensor.size(axis);
    element = element * size + std::clamp<int64_t>(read.indices[axis], 0, size - 1);
  }
  return static_cast<std::size_t>(element);
}

void expect_near(double got, double expected, double scale, const std::string& what) {
  EXPECT_NEAR(got, expected, 1e-12 * (1 + std::fabs(scale))) << what;
}

TEST(ScoreDefinition, ValuesDerivativesAndReadsAreThoseOfTheExpression) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    test::RandomScore random(seed, seed, sizes, smooth_function(seed), true);
    const ScoreDefinition definition(Activation(random.text(), {}, random.names()), heads);
    std::mt19937_64 generator(seed);
    const auto uniform = [&](int64_t below) {
      return static_cast<int64_t>(generator() % static_cast<uint64_t>(below));
    };
    std::vector<std::vector<double>> expected_sums, sums;
    std::vector<double> squares;
    for (const DrawnTensor& tensor : random.tensors()) sums.emplace_back(tensor.numbers.size());
    for (int draw = 0; draw < 40; ++draw) {
      Place place{uniform(batch), uniform(heads), uniform(length_q), uniform(length_k), length_q, length_k, 0, 0};
      place.row_q = place.b * length_q + place.i;
      place.row_k = place.b * length_k + place.j;
      const double score = std::normal_distribution<double>()(generator);
      std::vector<std::pair<std::size_t, std::size_t>> elements;
      const ScoreDerivatives at = definition.evaluate(
          {place.b, place.head, place.i, place.j, place.length_q, place.length_k, place.row_q, place.row_k}, score,
          [&](const TensorRead& read) {
            const DrawnTensor& tensor = random.tensors()[read.parameter];
            elements.emplace_back(read.parameter, element_of(read, tensor, place));
            return tensor.numbers[elements.back().second];
          });
      expect_near(at.value, random.value(score, place), at.value, random.text());
      expect_near(at.by_score, random.derivative(score, place), at.by_score, random.text());
      random.add_gradients(score, place, 1, expected_sums, squares);
      ASSERT_EQ(at.by_read.size(), elements.size());
      for (std::size_t n = 0; n < elements.size(); ++n) sums[elements[n].first][elements[n].second] += at.by_read[n];
    }
    for (std::size_t t = 0; t < sums.size(); ++t) {
      for (std::size_t e = 0; e < sums[t].size(); ++e) {
        expect_near(sums[t][e], expected_sums[t][e], std::sqrt(squares[t]), random.text());
      }
    }
  }
}

TEST(ScoreDefinition, EachHeadOfAListHasItsFunction) {
  const ScoreDefinition definition(Activation("gelu; a * s; silu", {}, {"a"}), 3);
  const auto at = [&](int64_t head) {
    return definition.evaluate({.head = head}, 0.7, [](const TensorRead&) { return 3.0; });
  };
  EXPECT_EQ(at(0).value, Activation("gelu").value(0.7));
  EXPECT_EQ(at(1).value, 3 * 0.7);
  EXPECT_EQ(at(1).by_read, std::vector<double>{0.7});
  EXPECT_EQ(at(2).by_score, Activation("silu").derivative(0.7));
  EXPECT_THROW(ScoreDefinition(Activation("gelu; silu"), 3), Error);
}

TEST(ScoreDefinition, AnInfiniteIndexIsBeyondTheAxis) {
  const ScoreDefinition definition(Activation("s + t[floor(log2(q_idx))]", {}, {"t"}), 1);
  int64_t position = 0;
  definition.evaluate({.q_idx = 0}, 0, [&](const TensorRead& read) {
    position = read.indices[0];
    return 0.0;
  });
  EXPECT_LT(position, -(int64_t{1} << 40));
}

}  // namespace
}  // namespace gdpa
