// The named functions and their derivatives as the CPU evaluates them, on a million scores, against long double
// formulas written here from the functions' definitions. `evaluator_accuracy_test --table` prints the table of
// docs/accuracy.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "cpu/evaluator.h"
#include "expression/function.h"
#include "gdpa/activation.h"
#include "simd_targets.h"

namespace gdpa::cpu {
namespace {

using Real = long double;

constexpr Real inf = std::numeric_limits<Real>::infinity();
constexpr Real pi = 3.14159265358979323846264338327950288L;

Real logistic(Real x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
Real normal_distribution(Real s) { return std::erfc(-s / std::sqrt(2.0L)) / 2; }
Real normal_density(Real s) { return std::exp(-s * s / 2) / std::sqrt(2 * pi); }
Real gelu_tanh_argument(Real s) { return 2 * std::sqrt(2 / pi) * (s + 0.044715L * s * s * s); }
Real gelu_tanh_slope(Real s) {
  const Real u = gelu_tanh_argument(s);
  const Real inner = 2 * std::sqrt(2 / pi) * (1 + 3 * 0.044715L * s * s);
  return logistic(u) + s * inner * (logistic(u) * logistic(-u));
}

/// A function and its derivative by definition, for finite scores, and their limits at -inf and inf.
struct Definition {
  std::string name;
  std::function<Real(Real)> value;
  std::function<Real(Real)> derivative;
  Real value_limits[2];
  Real derivative_limits[2];
  Real kink = 0;  ///< f' jumps at +-kink, where a score rounded to either side is right
};

void PrintTo(const Definition& definition, std::ostream* out) { *out << definition.name; }

const std::vector<Definition>& definitions() {
  static const std::vector<Definition> all = {
      {"identity", [](Real s) { return s; }, [](Real) { return 1; }, {-inf, inf}, {1, 1}},
      {"relu", [](Real s) { return s > 0 ? s : 0; }, [](Real s) { return s > 0 ? 1 : 0; }, {0, inf}, {0, 1}},
      {"relu2", [](Real s) { return s > 0 ? s * s : 0; }, [](Real s) { return s > 0 ? 2 * s : 0; }, {0, inf}, {0, inf}},
      {"leaky_relu",
       [](Real s) { return s > 0 ? s : s / 100; },
       [](Real s) { return s > 0 ? 1 : 0.01L; },
       {-inf, inf},
       {0.01L, 1}},
      {"gelu",
       [](Real s) { return s * normal_distribution(s); },
       [](Real s) { return normal_distribution(s) + s * normal_density(s); },
       {0, inf},
       {0, 1}},
      {"gelu_tanh", [](Real s) { return s * logistic(gelu_tanh_argument(s)); }, gelu_tanh_slope, {0, inf}, {0, 1}},
      {"silu",
       [](Real s) { return s * logistic(s); },
       [](Real s) { return logistic(s) + s * (logistic(s) * logistic(-s)); },
       {0, inf},
       {0, 1}},
      {"hardswish",
       [](Real s) { return s < -3  ? 0
                           : s > 3 ? s
                                   : s * (s + 3) / 6; },
       [](Real s) { return s < -3  ? 0
                           : s > 3 ? 1
                                   : (2 * s + 3) / 6; },
       {0, inf},
       {0, 1},
       3},
      {"sigmoid", logistic, [](Real s) { return logistic(s) * logistic(-s); }, {0, 1}, {0, 0}},
      {"tanh",
       [](Real s) { return std::tanh(s); },
       [](Real s) { return 4 * (logistic(2 * s) * logistic(-2 * s)); },
       {-1, 1},
       {0, 0}},
      {"softplus",
       [](Real s) { return s > 0 ? s + std::log1p(std::exp(-s)) : std::log1p(std::exp(s)); },
       logistic,
       {0, inf},
       {0, 1}},
  };
  return all;
}

/// A million scores: even over [-1e4, 1e4], even where the functions bend, of every magnitude down to the denormals;
/// and the ends.
template <class T>
std::vector<T> scores() {
  std::vector<T> all;
  std::mt19937_64 random(1);
  std::uniform_real_distribution<T> wide(T{-1e4}, T{1e4});
  std::uniform_real_distribution<T> bend(-20, 20);
  const double least = std::log2(static_cast<double>(std::numeric_limits<T>::denorm_min()));
  std::uniform_real_distribution<double> exponent(sizeof(T) == 4 ? least : -1070.0, std::log2(1e4));
  while (all.size() < 1'000'000) {
    const auto small = static_cast<T>(std::exp2(exponent(random)));
    all.insert(all.end(), {wide(random), bend(random), bend(random), small, -small});
  }
  using Limits = std::numeric_limits<T>;
  for (const T x :
       {T{0}, T{1e4}, Limits::max(), Limits::max() / 2, Limits::min(), Limits::denorm_min(), Limits::infinity()}) {
    all.insert(all.end(), {x, -x});
  }
  return all;
}

/// The largest errors over all scores, and where they are.
struct Errors {
  double ulps = 0;     ///< in units of the last place of the exact result
  double ulps_at = 0;  ///< score
  double scaled = 0;   ///< |error| / max(1, |exact|)
  double scaled_at = 0;
  std::string not_finite;  ///< a result that is not finite although the exact result is, or a wrong infinity
};

template <class T>
double unit_in_last_place(Real exact) {
  using Limits = std::numeric_limits<T>;
  const int exponent = exact == 0 ? Limits::min_exponent - 1 : std::max(std::ilogb(exact), Limits::min_exponent - 1);
  return std::ldexp(1.0, exponent - Limits::digits + 1);
}

template <class T>
void include(Errors& errors, T score, T actual, Real exact) {
  if (std::isinf(static_cast<T>(exact))) {
    if (actual != static_cast<T>(exact)) errors.not_finite = "no infinity at " + std::to_string(score);
    return;
  }
  if (!std::isfinite(actual)) {
    errors.not_finite = std::to_string(actual) + " at " + std::to_string(score);
    return;
  }
  const auto error = static_cast<double>(std::abs(static_cast<Real>(actual) - exact));
  const double ulps = error / unit_in_last_place<T>(exact);
  const double scaled = error / std::max(1.0, std::abs(static_cast<double>(exact)));
  if (ulps > errors.ulps) errors.ulps = ulps, errors.ulps_at = static_cast<double>(score);
  if (scaled > errors.scaled) errors.scaled = scaled, errors.scaled_at = static_cast<double>(score);
}

/// The worst errors of one function on every instruction set: of f, and of f'.
struct Measured {
  Errors value;
  Errors derivative;
};

template <class T>
Measured measure(const Definition& definition) {
  static const std::vector<T> all = scores<T>();
  std::vector<Real> exact_value(all.size());
  std::vector<Real> exact_derivative(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool infinite = std::isinf(all[i]);
    const std::size_t side = all[i] > 0 ? 1 : 0;
    exact_value[i] = infinite ? definition.value_limits[side] : definition.value(all[i]);
    exact_derivative[i] = infinite ? definition.derivative_limits[side] : definition.derivative(all[i]);
  }

  const Evaluator evaluator(Activation(definition.name).function().value_and_derivative());
  std::vector<T> value(all.size());
  std::vector<T> derivative(all.size());
  Measured measured;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const testing::WithTarget with(target);
    evaluator.evaluate(all.data(), static_cast<std::int64_t>(all.size()), value.data(), derivative.data());
    for (std::size_t i = 0; i < all.size(); ++i) {
      include(measured.value, all[i], value[i], exact_value[i]);
      const bool at_kink = definition.kink > 0 && std::abs(std::abs(static_cast<Real>(all[i])) - definition.kink) <
                                                      4 * definition.kink * std::numeric_limits<T>::epsilon();
      if (!at_kink) include(measured.derivative, all[i], derivative[i], exact_derivative[i]);
    }
  }
  return measured;
}

class NamedFunctions : public ::testing::TestWithParam<Definition> {
 protected:
  /// `largest` in units of the type's epsilon.
  template <class T>
  void errors_are_below(double largest) {
    const Measured measured = measure<T>(GetParam());
    EXPECT_EQ(measured.value.not_finite, "");
    EXPECT_EQ(measured.derivative.not_finite, "");
    const double epsilon = std::numeric_limits<T>::epsilon();
    EXPECT_LE(measured.value.scaled, largest * epsilon) << "f at " << measured.value.scaled_at;
    EXPECT_LE(measured.derivative.scaled, largest * epsilon) << "f' at " << measured.derivative.scaled_at;
  }
};

TEST_P(NamedFunctions, AreAccurateInFp32) { errors_are_below<float>(4); }
TEST_P(NamedFunctions, AreAccurateInFp64) { errors_are_below<double>(4); }

TEST_P(NamedFunctions, HaveTheSameValueWithAndWithoutTheDerivative) {
  const activation::Function& function = Activation(GetParam().name).function();
  std::vector<float> some;
  for (float x = -60; x < 60; x += 0.013F) some.push_back(x);
  const auto count = static_cast<std::int64_t>(some.size());
  std::vector<float> alone(some.size());
  std::vector<float> together(some.size());
  std::vector<float> derivative(some.size());
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    const testing::WithTarget with(target);
    Evaluator(function.value()).evaluate(some.data(), count, alone.data());
    Evaluator(function.value_and_derivative()).evaluate(some.data(), count, together.data(), derivative.data());
    EXPECT_EQ(alone, together) << hwy::TargetName(target);
  }
}

TEST_P(NamedFunctions, KeepNan) {
  const Evaluator evaluator(Activation(GetParam().name).function().value());
  const float single = std::numeric_limits<float>::quiet_NaN();
  const double twice = std::numeric_limits<double>::quiet_NaN();
  float single_value = 0;
  double twice_value = 0;
  evaluator.evaluate(&single, 1, &single_value);
  evaluator.evaluate(&twice, 1, &twice_value);
  EXPECT_TRUE(std::isnan(single_value));
  EXPECT_TRUE(std::isnan(twice_value));
}

std::string definition_name(const ::testing::TestParamInfo<Definition>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(All, NamedFunctions, ::testing::ValuesIn(definitions()), definition_name);

TEST(NamedFunctionsTable, EveryNameIsMeasured) {
  for (const NamedActivation& named : named_activations()) {
    // An alias has the name of its function for an expression.
    const bool is_measured = std::any_of(definitions().begin(), definitions().end(), [&](const Definition& definition) {
      return named.name == definition.name || named.expression == definition.name;
    });
    EXPECT_TRUE(is_measured) << named.name;
  }
}

template <class T>
void print_rows(const char* type) {
  for (const Definition& definition : definitions()) {
    const Measured measured = measure<T>(definition);
    const auto print = [](const Errors& errors) {
      std::printf(" %.1e | %.3g | %.2g | %.3g |", errors.scaled, errors.scaled_at, errors.ulps, errors.ulps_at);
    };
    std::printf("| %s | %s |", definition.name.c_str(), type);
    print(measured.value);
    print(measured.derivative);
    std::printf("\n");
  }
}

}  // namespace
}  // namespace gdpa::cpu

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--table") {
    std::printf("| function | type | f: error | at s | ulp | at s | f': error | at s | ulp | at s |\n");
    std::printf("|---|---|---|---|---|---|---|---|---|---|\n");
    gdpa::cpu::print_rows<float>("fp32");
    gdpa::cpu::print_rows<double>("fp64");
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
