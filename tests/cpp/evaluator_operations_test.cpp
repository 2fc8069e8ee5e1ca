// Every operation of the evaluator, in fp32 and fp64, on every instruction set: its error against long double over its
// range, and IEEE behaviour at infinities, NaN, zeros and denormals.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "cpu/evaluator.h"
#include "program_builder.h"
#include "simd_targets.h"

namespace gdpa::cpu {
namespace {

using activation::Operation;
using testing::program_of;
using Real = long double;

constexpr double inf = std::numeric_limits<double>::infinity();
const double nan = std::numeric_limits<double>::quiet_NaN();

/// An operation of one operand with its definition, the scores to try, and the error allowed in units of the last
/// place of the result: for fp32 and for fp64.
struct Case {
  Operation operation;
  const char* name;
  std::function<Real(Real)> definition;
  double low;
  double high;
  double ulps32;
  double ulps64;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {Operation::exp, "exp", [](Real x) { return std::exp(x); }, -760, 760, 3, 3},
      {Operation::exp2, "exp2", [](Real x) { return std::exp2(x); }, -1100, 1100, 3, 3},
      {Operation::expm1, "expm1", [](Real x) { return std::expm1(x); }, -60, 720, 3, 3},
      {Operation::log, "log", [](Real x) { return std::log(x); }, 0, 1e6, 1.5, 1.5},
      {Operation::log1p, "log1p", [](Real x) { return std::log1p(x); }, -1, 1e6, 3, 3},
      {Operation::tanh, "tanh", [](Real x) { return std::tanh(x); }, -30, 30, 3, 3},
      {Operation::sigmoid, "sigmoid", [](Real x) { return 1 / (1 + std::exp(-x)); }, -760, 760, 3, 3},
      {Operation::erf, "erf", [](Real x) { return std::erf(x); }, -10, 10, 3, 3},
      {Operation::softplus, "softplus", [](Real x) { return x > 50 ? x : std::log1p(std::exp(x)); }, -760, 760, 3, 3},
      {Operation::sin, "sin", [](Real x) { return std::sin(x); }, -1e4, 1e4, 3, 3},
      {Operation::cos, "cos", [](Real x) { return std::cos(x); }, -1e4, 1e4, 3, 3},
      {Operation::sqrt, "sqrt", [](Real x) { return std::sqrt(x); }, 0, 1e30, 0.51, 0.51},
      {Operation::rsqrt, "rsqrt", [](Real x) { return 1 / std::sqrt(x); }, 0, 1e30, 1.6, 1.6},
      {Operation::negate, "negate", [](Real x) { return -x; }, -1e30, 1e30, 0, 0},
      {Operation::absolute, "absolute", [](Real x) { return std::abs(x); }, -1e30, 1e30, 0, 0},
  };
  return all;
}

/// Scores over [low, high]: even, dense towards 0 on both sides down to the denormals, and near 1.
template <class T>
std::vector<T> scores_over(double low, double high) {
  std::vector<T> scores;
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> even(low, high);
  std::uniform_real_distribution<double> exponent(std::numeric_limits<T>::min_exponent - std::numeric_limits<T>::digits,
                                                  std::log2(std::max(high, 1.0)));
  std::uniform_real_distribution<double> few(-8, 8);
  for (int i = 0; i < 40000; ++i) {
    const double magnitude = std::exp2(exponent(random));
    for (const double x : {even(random), few(random), magnitude, -magnitude, 1 + magnitude}) {
      if (x >= low && x <= high) scores.push_back(static_cast<T>(x));
    }
  }
  return scores;
}

/// |actual - exact| in units of the last place of exact; a result that should overflow counts as exact where it does.
template <class T>
double ulps(T actual, Real exact) {
  if (std::isnan(exact)) return std::isnan(actual) ? 0 : inf;
  if (std::isinf(static_cast<T>(exact))) {
    // The last bits below overflow may tip either way.
    const Real next = std::abs(exact) / std::numeric_limits<T>::max();
    return (std::isinf(actual) || next < 1 + 4 * std::numeric_limits<T>::epsilon()) ? 0 : inf;
  }
  const int exponent = exact == 0 ? std::numeric_limits<T>::min_exponent : std::ilogb(exact);
  const int last = std::max(exponent, std::numeric_limits<T>::min_exponent - 1) - std::numeric_limits<T>::digits + 1;
  const auto error = static_cast<double>(std::ldexp(std::abs(static_cast<Real>(actual) - exact), -last));
  return std::isnan(error) ? inf : error;
}

template <class T>
std::vector<T> evaluated(const activation::Program& program, const std::vector<T>& scores) {
  std::vector<T> values(scores.size());
  Evaluator(program).evaluate(scores.data(), static_cast<std::int64_t>(scores.size()), values.data());
  return values;
}

template <class T>
void expect_values(const activation::Program& program, const std::vector<std::pair<double, double>>& table) {
  std::vector<T> scores;
  for (const auto& [score, expected] : table) scores.push_back(static_cast<T>(score));
  const std::vector<T> values = evaluated(program, scores);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto expected = static_cast<T>(table[i].second);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(values[i])) << "for " << scores[i] << " got " << values[i];
    } else {
      EXPECT_EQ(values[i], expected) << "for " << scores[i];
    }
  }
}

class EvaluatorOperations : public testing::OnEveryTarget {
 protected:
  template <class T>
  void errors_are_bounded() {
    for (const Case& one : cases()) {
      const std::vector<T> scores = scores_over<T>(one.low, one.high);
      const std::vector<T> values = evaluated(program_of(one.operation), scores);
      double worst = -1;
      std::size_t where = 0;
      for (std::size_t i = 0; i < scores.size(); ++i) {
        const double error = ulps(values[i], one.definition(scores[i]));
        if (error > worst) {
          worst = error;
          where = i;
        }
      }
      EXPECT_LE(worst, sizeof(T) == 4 ? one.ulps32 : one.ulps64)
          << one.name << "(" << scores[where] << ") gave " << values[where];
    }
  }

  template <class T>
  void ends_follow_ieee() {
    const double tiny = std::numeric_limits<T>::denorm_min();
    using Table = std::vector<std::pair<double, double>>;
    const auto expect = [](Operation operation, const Table& table) {
      SCOPED_TRACE(static_cast<int>(operation));
      expect_values<T>(program_of(operation), table);
    };
    expect(Operation::exp, {{inf, inf}, {-inf, 0}, {nan, nan}, {0, 1}, {-0.0, 1}, {1e4, inf}, {-1e4, 0}, {tiny, 1}});
    expect(Operation::exp2, {{inf, inf}, {-inf, 0}, {nan, nan}, {0, 1}, {1e4, inf}, {-1e4, 0}, {10, 1024}});
    expect(Operation::expm1, {{inf, inf}, {-inf, -1}, {nan, nan}, {0, 0}, {1e4, inf}, {-1e4, -1}, {tiny, tiny}});
    expect(Operation::log,
           {{inf, inf}, {-inf, nan}, {nan, nan}, {0, -inf}, {-0.0, -inf}, {1, 0}, {-1, nan}, {-tiny, nan}});
    expect(Operation::log1p, {{inf, inf}, {-inf, nan}, {nan, nan}, {0, 0}, {-1, -inf}, {-2, nan}, {tiny, tiny}});
    expect(Operation::tanh, {{inf, 1}, {-inf, -1}, {nan, nan}, {0, 0}, {1e4, 1}, {-1e4, -1}, {tiny, tiny}});
    expect(Operation::sigmoid, {{inf, 1}, {-inf, 0}, {nan, nan}, {0, 0.5}, {1e4, 1}, {-1e4, 0}, {tiny, 0.5}});
    expect(Operation::erf, {{inf, 1}, {-inf, -1}, {nan, nan}, {0, 0}, {1e4, 1}, {-1e4, -1}, {6, 1}, {-6, -1}});
    expect(Operation::softplus, {{inf, inf}, {-inf, 0}, {nan, nan}, {1e4, 1e4}, {-1e4, 0}, {3e38, 3e38}});
    expect(Operation::sin, {{inf, nan}, {-inf, nan}, {nan, nan}, {0, 0}, {tiny, tiny}});
    expect(Operation::cos, {{inf, nan}, {-inf, nan}, {nan, nan}, {0, 1}, {tiny, 1}});
    expect(Operation::sqrt, {{inf, inf}, {-inf, nan}, {nan, nan}, {0, 0}, {-1, nan}, {4, 2}});
    expect(Operation::rsqrt, {{inf, 0}, {-inf, nan}, {nan, nan}, {0, inf}, {-1, nan}, {4, 0.5}});
    expect(Operation::sign, {{inf, 1}, {-inf, -1}, {nan, nan}, {0, 0}, {-0.0, 0}, {tiny, 1}, {-tiny, -1}});
    expect(Operation::absolute, {{inf, inf}, {-inf, inf}, {nan, nan}, {-0.0, 0}, {-tiny, tiny}});
    expect(Operation::negate, {{inf, -inf}, {-inf, inf}, {nan, nan}, {-tiny, tiny}});
  }

  template <class T>
  void minimum_and_maximum_keep_nan() {
    expect_values<T>(program_of(Operation::minimum, 1), {{nan, nan}, {0, 0}, {2, 1}, {inf, 1}, {-inf, -inf}});
    expect_values<T>(program_of(Operation::maximum, 1), {{nan, nan}, {0, 1}, {2, 2}, {inf, inf}, {-inf, 1}});
    expect_values<T>(program_of(Operation::minimum, nan), {{nan, nan}, {0, nan}, {inf, nan}, {-inf, nan}});
    expect_values<T>(program_of(Operation::maximum, nan), {{nan, nan}, {0, nan}, {inf, nan}, {-inf, nan}});
  }

  template <class T>
  void comparisons_select() {
    using Expected = std::vector<std::pair<double, double>>;
    const auto chosen = [](Operation comparison) {
      testing::ProgramBuilder builder;
      const auto truth = builder.step(comparison, builder.score(), builder.number(1));
      return builder.with_results({builder.step(Operation::select, truth, builder.number(2), builder.number(3))});
    };
    expect_values<T>(chosen(Operation::less), Expected{{0, 2}, {1, 3}, {2, 3}, {nan, 3}, {-inf, 2}, {inf, 3}});
    expect_values<T>(chosen(Operation::less_equal), Expected{{0, 2}, {1, 2}, {2, 3}, {nan, 3}, {-inf, 2}, {inf, 3}});
    expect_values<T>(chosen(Operation::equal), Expected{{0, 3}, {1, 2}, {2, 3}, {nan, 3}, {-inf, 3}, {inf, 3}});
  }

  template <class T>
  void arithmetic_is_the_processors() {
    const double third = static_cast<T>(1.0 / 3);
    expect_values<T>(program_of(Operation::add, third), {{1, static_cast<T>(1 + static_cast<T>(third))}, {inf, inf}});
    expect_values<T>(program_of(Operation::subtract, inf), {{1, -inf}, {inf, nan}, {nan, nan}});
    expect_values<T>(program_of(Operation::multiply, 0), {{1, 0}, {inf, nan}, {nan, nan}});
    expect_values<T>(program_of(Operation::divide, 0), {{1, inf}, {-1, -inf}, {0, nan}, {nan, nan}});
    expect_values<T>(program_of(Operation::power, 0.25), {{16, 2}, {0, 0}, {-1, nan}, {inf, inf}, {nan, nan}});
    expect_values<T>(program_of(Operation::power, -3), {{2, 0.125}, {-2, -0.125}, {inf, 0}, {0, inf}});
  }
};

TEST_P(EvaluatorOperations, ErrorsAreBounded) {
  errors_are_bounded<float>();
  errors_are_bounded<double>();
}

TEST_P(EvaluatorOperations, EndsFollowIeee) {
  ends_follow_ieee<float>();
  ends_follow_ieee<double>();
}

TEST_P(EvaluatorOperations, MinimumAndMaximumKeepNan) {
  minimum_and_maximum_keep_nan<float>();
  minimum_and_maximum_keep_nan<double>();
}

TEST_P(EvaluatorOperations, ComparisonsSelect) {
  comparisons_select<float>();
  comparisons_select<double>();
}

TEST_P(EvaluatorOperations, ArithmeticIsTheProcessors) {
  arithmetic_is_the_processors<float>();
  arithmetic_is_the_processors<double>();
}

TEST_P(EvaluatorOperations, SineOfVeryLargeScoresStaysAccurate) {
  for (const double score : {12345.678, 1e5, 1e9, 1e20, -1e30}) {
    const std::vector<float> single = {static_cast<float>(score)};
    const std::vector<double> twice = {score};
    EXPECT_LE(ulps(evaluated(program_of(Operation::sin), single)[0], std::sin(static_cast<Real>(single[0]))), 2);
    EXPECT_LE(ulps(evaluated(program_of(Operation::cos), single)[0], std::cos(static_cast<Real>(single[0]))), 2);
    EXPECT_LE(ulps(evaluated(program_of(Operation::sin), twice)[0], std::sin(static_cast<Real>(score))), 2);
    EXPECT_LE(ulps(evaluated(program_of(Operation::cos), twice)[0], std::cos(static_cast<Real>(score))), 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, EvaluatorOperations, testing::all_simd_targets(), testing::target_name);

}  // namespace
}  // namespace gdpa::cpu
