// Random expressions of the score: smooth and kinked, flat and steep, bounded and growing. Each has a text for gdpa
// and, as an independent reference, f and f' by dual numbers. Values and slopes stay finite for every score that the
// tests make.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numbers>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"

namespace gdpa::test {

/// A number and its derivative with respect to the score.
struct Dual {
  double value = 0;
  double slope = 0;

  friend Dual operator+(Dual x, Dual y) { return {x.value + y.value, x.slope + y.slope}; }
  friend Dual operator-(Dual x, Dual y) { return {x.value - y.value, x.slope - y.slope}; }
  friend Dual operator*(Dual x, Dual y) { return {x.value * y.value, x.slope * y.value + x.value * y.slope}; }
};

using DualFunction = std::function<Dual(Dual)>;

/// A function of one number and its derivative, as a function of dual numbers.
template <class Value, class Slope>
DualFunction chain(Value value, Slope slope) {
  return [=](Dual x) { return Dual{value(x.value), slope(x.value) * x.slope}; };
}

struct DrawnFunction {
  std::string text;
  DualFunction dual;

  double value(double score) const { return dual({score, 1}).value; }
  double derivative(double score) const { return dual({score, 1}).slope; }
};

class RandomExpression {
 public:
  explicit RandomExpression(std::uint64_t seed) : random_(seed) {}

  /// One term, or two or three that are combined, often with the score itself as a factor.
  DrawnFunction function() {
    DrawnFunction drawn = term();
    for (int64_t i = pick<int64_t>({0, 0, 1, 2}); i > 0; --i) drawn = combined(std::move(drawn), term());
    if (!chance(0.4)) return drawn;
    return {"s * " + drawn.text, [f = drawn.dual](Dual s) { return s * f(s); }};
  }

 private:
  struct Unary {
    const char* text;
    DualFunction dual;
  };
  struct Binary {
    const char* text;
    Dual (*dual)(Dual, Dual);
  };

  double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(random_); }
  bool chance(double probability) { return uniform(0, 1) < probability; }
  template <class T>
  const T& pick(const std::vector<T>& choices) {
    return choices[random_() % choices.size()];
  }

  /// Log-uniform, of three digits, so that the text and the reference have the same number.
  double number(double low, double high) {
    return std::stod(fmt::format("{:.3g}", std::exp(uniform(std::log(low), std::log(high)))));
  }

  static const std::vector<Unary>& unary() {
    static const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
    static const auto normal = [](double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); };
    static const auto density = [](double x) {
      return std::exp(-0.5 * x * x) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
    };
    static const std::vector<Unary> all = {
        {"tanh({0})",
         chain([](double x) { return std::tanh(x); }, [](double x) { return 1 / (std::cosh(x) * std::cosh(x)); })},
        {"sigmoid({0})", chain(sigmoid, [](double x) { return sigmoid(x) * sigmoid(-x); })},
        {"silu({0})",
         chain([](double x) { return x * sigmoid(x); }, [](double x) { return sigmoid(x) * (1 + x * sigmoid(-x)); })},
        {"gelu({0})",
         chain([](double x) { return x * normal(x); }, [](double x) { return normal(x) + x * density(x); })},
        {"relu({0})", chain([](double x) { return std::fmax(x, 0); }, [](double x) { return x > 0 ? 1.0 : 0.0; })},
        {"softplus({0})",
         chain([](double x) { return std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x))); }, sigmoid)},
        {"sin({0})", chain([](double x) { return std::sin(x); }, [](double x) { return std::cos(x); })},
        {"cos({0})", chain([](double x) { return std::cos(x); }, [](double x) { return -std::sin(x); })},
        {"erf({0})", chain([](double x) { return std::erf(x); },
                           [](double x) { return 2 * std::numbers::inv_sqrtpi * std::exp(-x * x); })},
        {"exp(-({0})^2)",
         chain([](double x) { return std::exp(-x * x); }, [](double x) { return -2 * x * std::exp(-x * x); })},
        {"sqrt(1 + ({0})^2)",
         chain([](double x) { return std::sqrt(1 + x * x); }, [](double x) { return x / std::sqrt(1 + x * x); })},
        {"{0} / (1 + abs({0}))", chain([](double x) { return x / (1 + std::fabs(x)); },
                                       [](double x) { return 1 / ((1 + std::fabs(x)) * (1 + std::fabs(x))); })},
        {"log1p(abs({0}))", chain([](double x) { return std::log1p(std::fabs(x)); },
                                  [](double x) { return (x > 0 ? 1 : -1) / (1 + std::fabs(x)); })},
    };
    return all;
  }

  static const std::vector<Binary>& binary() {
    static const std::vector<Binary> all = {
        {"({} + {})", [](Dual x, Dual y) { return x + y; }},
        {"({} - {})", [](Dual x, Dual y) { return x - y; }},
        {"({} * {})", [](Dual x, Dual y) { return x * y; }},
        {"max({}, {})", [](Dual x, Dual y) { return x.value > y.value ? x : y; }},
        {"min({}, {})", [](Dual x, Dual y) { return x.value < y.value ? x : y; }},
    };
    return all;
  }

  /// A function of a multiple of the score, which may be shifted. Factors above 1 make the function steep.
  DrawnFunction term() {
    const double factor = number(0.2, 12) * pick<double>({1, 1, -1});
    const double shift = chance(0.3) ? number(0.1, 3) * pick<double>({1, -1}) : 0;
    const Unary& drawn = pick(unary());
    return {fmt::format(fmt::runtime(drawn.text), fmt::format("({} * s + {})", factor, shift)),
            [f = drawn.dual, factor, shift](Dual s) {
              return f({factor * s.value + shift, factor * s.slope});
            }};
  }

  DrawnFunction combined(DrawnFunction left, DrawnFunction right) {
    const Binary& drawn = pick(binary());
    return {fmt::format(fmt::runtime(drawn.text), left.text, right.text),
            [f = drawn.dual, one = left.dual, other = right.dual](Dual s) { return f(one(s), other(s)); }};
  }

  std::mt19937_64 random_;
};

}  // namespace gdpa::test
