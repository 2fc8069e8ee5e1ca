// The promise of docs/accuracy.md as a test: the results of a random problem against the definition in fp64.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "random_problem.h"
#include "reference.h"
#include "strided.h"

namespace gdpa::test {

/// What a call computes with: the type of its operands, or fp32 operands in one product of tf32.
enum class Products { of_type, tf32 };

/// The constant c of the documentation.
inline double relative_bound(DType dtype, Products products) {
  switch (dtype) {
    case DType::bfloat16:
      return 3e-3;
    case DType::float16:
      return 6e-4;
    case DType::float32:
      return products == Products::tf32 ? 6e-4 : 2e-6;
    default:
      return 1e-13;
  }
}

inline double rounded(DType dtype, double value) {
  std::array<std::byte, 8> stored;
  from_double(dtype, value, stored.data());
  return to_double(dtype, stored.data());
}

/// To the 10 bits of fraction of tf32, ties to even.
inline double rounded_to_tf32(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return static_cast<double>(std::bit_cast<float>((bits + 0xfff + ((bits >> 13) & 1)) & ~std::uint32_t{0x1fff}));
}

struct Results {
  explicit Results(RandomProblem& problem)
      : output(problem.new_output()),
        grad_query(problem.new_grad_query()),
        grad_key(problem.new_grad_key()),
        grad_value(problem.new_grad_value()),
        grad_tensors(problem.new_grad_tensors()) {}

  Strided output, grad_query, grad_key, grad_value;
  std::vector<Strided> grad_tensors;  ///< of the tensors that the score reads; those of integers are not computed
};

/// The view of a gradient that backward gets: an empty one where it is not wanted.
inline MutableTensorView gradient_view(bool is_wanted, Strided& gradient) {
  return is_wanted ? gradient.mutable_view() : MutableTensorView{};
}

/// Compares a result with the exact result and with the result in its own type.
class Judge {
 public:
  Judge(DType dtype, Products products) : dtype_(dtype), bound_(relative_bound(dtype, products)) {}

  /// The error is at most twice the larger of c times the norm of the result and the error of the same computation in
  /// the same type. The latter counts where a result is a small difference of large terms. Rows that are not `written`
  /// belong to no sequence and are exactly those of `exact`: 0, or the rows that are added, which are NaN. If they are
  /// not `zeroed`, they are still NaN. Nothing outside the result was written.
  void expect_near(Strided& result, const Dense& exact, const Dense& same_type, Range written, const char* what) const {
    std::vector<bool> rows(static_cast<std::size_t>(exact.rows));
    std::fill(rows.begin() + written.begin, rows.begin() + written.end, true);
    expect_near(result, exact, same_type, rows, what);
  }
  void expect_near(Strided& result, const Dense& exact, const Dense& same_type, const std::vector<bool>& written,
                   const char* what, bool zeroed = true) const {
    EXPECT_TRUE(result.rest_is_poisoned()) << what;
    std::vector<double> values = result.values(), expected = exact.values, stored = same_type.values;
    ASSERT_EQ(values.size(), expected.size()) << what;
    for (double& value : stored) value = rounded(dtype_, value);
    const auto of_row = static_cast<std::size_t>(exact.heads * exact.width);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (written[i / of_row]) continue;
      const bool is_nan = !zeroed || std::isnan(expected[i]);
      ASSERT_TRUE(is_nan ? std::isnan(values[i]) : values[i] == expected[i])
          << what << ": element " << i << " belongs to no sequence and is " << values[i];
      values[i] = expected[i] = stored[i] = 0;
    }
    const Distance actual = distance(values, expected, 0, values.size());
    const Distance allowed = distance(stored, expected, 0, values.size());
    EXPECT_LE(actual.error, 2 * std::max(bound_ * actual.norm, allowed.error))
        << what << ": relative error " << actual.error / actual.norm;
  }

  /// The same for the gradient of a tensor that the score reads. It is a sum over any number of scores, so its error is
  /// compared with the norm of all terms where they cancel.
  void expect_near(Strided& result, const std::vector<double>& exact, const std::vector<double>& same_type,
                   double squares, const std::string& what) const {
    EXPECT_TRUE(result.rest_is_poisoned()) << what;
    const std::vector<double> values = result.values();
    ASSERT_EQ(values.size(), exact.size()) << what;
    const Distance actual = distance(values, exact, 0, values.size());
    std::vector<double> stored = same_type;
    for (double& value : stored) value = rounded(result.dtype(), value);
    const Distance allowed = distance(stored, exact, 0, values.size());
    const double norm = std::max(actual.norm, std::sqrt(squares));
    EXPECT_LE(actual.error, 2 * std::max(bound_ * norm, allowed.error))
        << what << ": relative error " << actual.error / norm;
  }

 private:
  struct Distance {
    double error = 0;
    double norm = 0;
  };

  /// 2-norms over elements [begin, end); NaN where one is NaN, which no bound admits.
  static Distance distance(const std::vector<double>& values, const std::vector<double>& expected, std::size_t begin,
                           std::size_t end) {
    Distance sums;
    for (std::size_t i = begin; i < end; ++i) {
      const double difference = values[i] - expected[i];
      sums.error += difference * difference;
      sums.norm += expected[i] * expected[i];
    }
    return {std::sqrt(sums.error), std::sqrt(sums.norm)};
  }

  DType dtype_;
  double bound_;
};

/// The output and the wanted gradients keep the promise; the other gradients are never written. The computation in the
/// same type rounds as PyTorch does: in 16 bits every result of an operation (S, P, dP and dS), in tf32 every operand
/// of a product.
inline void expect_promise(RandomProblem& problem, Strided& grad_output, Results& results,
                           Products products = Products::of_type) {
  Reference reference = problem.reference();
  Dense grad = RandomProblem::dense(grad_output, problem.heads_q(), problem.head_dim_v());
  const Dense output = reference_output(reference);
  const ReferenceGradients exact = reference_gradients(reference, grad);
  Dense rounded_output = output;
  ReferenceGradients same_type = exact;
  const DType dtype = problem.dtype();
  if (products == Products::tf32 || size_in_bytes(dtype) == 2) {
    if (products == Products::tf32) {
      reference.round_operand = rounded_to_tf32;
      for (Dense* operand : {&reference.query, &reference.key, &reference.value, &grad}) {
        for (double& value : operand->values) value = rounded_to_tf32(value);
      }
    } else {
      reference.round_operand = reference.round_product = [&](double value) { return rounded(dtype, value); };
    }
    rounded_output = reference_output(reference);
    same_type = reference_gradients(reference, grad);
  }
  const Judge judge(dtype, products);
  judge.expect_near(results.output, output, rounded_output, problem.output_rows_of_sequences(), "O",
                    problem.zeroes_output());
  const auto judge_gradient = [&](bool is_wanted, Strided& gradient, const Dense& expected, const Dense& rounded,
                                  const std::vector<bool>& rows, const char* what) {
    if (is_wanted) {
      judge.expect_near(gradient, expected, rounded, rows, what);
    } else {
      EXPECT_TRUE(gradient.is_poisoned()) << what << " is not wanted, and was written";
    }
  };
  const WantedGradients& wanted = problem.wanted();
  const std::vector<bool> queries = problem.query_rows_of_sequences(), keys = problem.key_rows_of_sequences();
  judge_gradient(wanted.query, results.grad_query, exact.query, same_type.query, queries, "dQ");
  judge_gradient(wanted.key, results.grad_key, exact.key, same_type.key, keys, "dK");
  judge_gradient(wanted.value, results.grad_value, exact.value, same_type.value, keys, "dV");
  for (std::size_t i = 0; i < problem.tensors().size(); ++i) {
    const DrawnTensor& tensor = problem.tensors()[i];
    if (!tensor.is_floating || problem.is_forward_only()) continue;
    const bool has_terms = i < exact.tensors.size();
    const std::vector<double> zeros(tensor.numbers.size());
    judge.expect_near(results.grad_tensors[i], has_terms ? exact.tensors[i] : zeros,
                      has_terms ? same_type.tensors[i] : zeros, has_terms ? exact.squares[i] : 0,
                      "gradient of " + tensor.name);
  }
}

}  // namespace gdpa::test
