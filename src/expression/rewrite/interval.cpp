// See interval.h.
#include "expression/rewrite/interval.h"

#include <numbers>
#include <utility>

namespace gdpa::activation {

namespace {

/// The order of numbers, with -0 before +0.
template <class Real>
bool is_below(Real a, Real b) {
  return a < b || (a == b && std::signbit(a) && !std::signbit(b));
}

template <class Real>
Interval<Real> hull(const Interval<Real>& a, const Interval<Real>& b) {
  return {is_below(b.low, a.low) ? b.low : a.low, is_below(a.high, b.high) ? b.high : a.high,
          a.may_be_nan || b.may_be_nan};
}

/// The smallest interval of the added numbers. A NaN sets may_be_nan and does not move the ends.
template <class Real>
class Hull {
 public:
  void add(Real number) {
    if (std::isnan(number)) {
      may_be_nan_ = true;
      return;
    }
    if (is_empty_ || is_below(number, low_)) low_ = number;
    if (is_empty_ || is_below(high_, number)) high_ = number;
    is_empty_ = false;
  }
  Interval<Real> interval(bool may_be_nan) const {
    if (is_empty_) return Interval<Real>::whole();
    return {low_, high_, may_be_nan || may_be_nan_};
  }

 private:
  Real low_ = 0;
  Real high_ = 0;
  bool is_empty_ = true;
  bool may_be_nan_ = false;
};

double compute(Operation operation, double a, double b = 0) { return apply(operation, a, b); }
float compute(Operation operation, float a, float b = 0) { return apply_in_fp32(operation, a, b); }

/// Interval rules for the results of arithmetic in Real.
template <class Real>
class Rules {
 public:
  using Range = Interval<Real>;

  static Range apply_to(Operation operation, const Range& a, const Range& b, const Range& c) {
    const bool may_be_nan = a.may_be_nan || b.may_be_nan;
    switch (operation) {
      case Operation::constant:
      case Operation::score:
      case Operation::input:
        break;
      case Operation::add:
        return sum(operation, a, b.low, b.high, may_be_nan);
      case Operation::subtract:
        return sum(operation, a, b.high, b.low, may_be_nan);
      case Operation::multiply:
        return product(a, b, may_be_nan);
      case Operation::divide:
        if (b.contains(0) && !is_point(b)) return Range::whole();
        return corners(operation, a, b, may_be_nan);
      case Operation::floor_divide:
        return apply_to(Operation::floor, apply_to(Operation::divide, a, b, c), b, c);
      case Operation::power:
        if (a.low < 0 || !is_point(b))
          return is_point(a) && is_point(b) ? corners(operation, a, b, may_be_nan) : Range::whole();
        return corners(operation, a, b, may_be_nan);
      case Operation::negate:
        return {-a.high, -a.low, a.may_be_nan};
      case Operation::absolute:
        return {a.mignitude(), a.magnitude(), a.may_be_nan};
      case Operation::sign:
      case Operation::floor:
      case Operation::exp:
      case Operation::exp2:
      case Operation::expm1:
      case Operation::tanh:
      case Operation::sigmoid:
      case Operation::erf:
      case Operation::softplus:
        return {compute(operation, a.low), compute(operation, a.high), a.may_be_nan};
      case Operation::sqrt:
      case Operation::log:
      case Operation::log2:
        return monotone_from(operation, 0, a);
      case Operation::log1p:
        return monotone_from(operation, -1, a);
      case Operation::rsqrt: {
        if (a.contains(0) && !is_point(a)) return Range::whole();
        const Range result = monotone_from(operation, 0, a);
        return {result.high, result.low, result.may_be_nan};
      }
      case Operation::sin:
      case Operation::cos:
        return wave(operation, a);
      case Operation::minimum:
      case Operation::maximum:
        return {bound(operation, a.low, b.low), bound(operation, a.high, b.high), may_be_nan};
      case Operation::less:
        return truth(a.high < b.low && !may_be_nan, !(a.low < b.high));
      case Operation::less_equal:
        return truth(a.high <= b.low && !may_be_nan, !(a.low <= b.high));
      case Operation::equal:
        return truth(is_point(a) && is_point(b) && a.low == b.low && !may_be_nan, a.high < b.low || b.high < a.low);
      case Operation::select:
        if (a.contains(0)) return a.low == a.high ? c : hull(b, c);
        return b;
    }
    return Range::whole();
  }

 private:
  static bool is_point(const Range& x) { return x.low == x.high; }

  static Range truth(bool always, bool never) { return {always ? Real{1} : Real{0}, never ? Real{0} : Real{1}, false}; }

  static Real bound(Operation operation, Real a, Real b) {
    const bool takes_a = operation == Operation::minimum ? is_below(a, b) : is_below(b, a);
    return takes_a ? a : b;
  }

  static Range sum(Operation operation, const Range& a, Real b_low, Real b_high, bool may_be_nan) {
    const Real low = compute(operation, a.low, b_low), high = compute(operation, a.high, b_high);
    // The sum of opposite infinities is NaN.
    if (std::isnan(low) || std::isnan(high)) return Range::whole();
    const bool may_cancel =
        std::isnan(compute(operation, a.low, b_high)) || std::isnan(compute(operation, a.high, b_low));
    return {low, high, may_be_nan || may_cancel};
  }

  /// A corner of 0 times infinity is NaN, and all finite numbers near that infinity give 0 there.
  static Range product(const Range& a, const Range& b, bool may_be_nan) {
    Hull<Real> hull;
    for (const Real x : {a.low, a.high}) {
      for (const Real y : {b.low, b.high}) {
        const Real corner = compute(Operation::multiply, x, y);
        hull.add(corner);
        if (!std::isnan(corner)) continue;
        const Real sign = std::signbit(x) == std::signbit(y) ? Real{1} : Real{-1};
        hull.add(std::copysign(Real{0}, sign));
      }
    }
    const auto is_infinite = [](const Range& x) { return std::isinf(x.low) || std::isinf(x.high); };
    const bool has_zero_times_infinity = (a.contains(0) && is_infinite(b)) || (b.contains(0) && is_infinite(a));
    return hull.interval(may_be_nan || has_zero_times_infinity);
  }

  static Range corners(Operation operation, const Range& a, const Range& b, bool may_be_nan) {
    Hull<Real> hull;
    for (const Real x : {a.low, a.high}) {
      for (const Real y : {b.low, b.high}) hull.add(compute(operation, x, y));
    }
    return hull.interval(may_be_nan);
  }

  /// An operation that is monotone from `least` on, and NaN below.
  static Range monotone_from(Operation operation, Real least, const Range& a) {
    if (a.low < least && !(a.low == a.high)) return Range::whole();
    const Real low = compute(operation, a.low), high = compute(operation, a.high);
    if (std::isnan(low) || std::isnan(high)) return Range::whole();
    return {low, high, a.may_be_nan};
  }

  static Range wave(Operation operation, const Range& a) {
    if (is_point(a) && !std::isinf(a.low)) return Range::point(compute(operation, a.low));
    if (std::isinf(a.low) || std::isinf(a.high)) return {-1, 1, true};
    const Real width = a.high - a.low;
    constexpr Real rounding = 8 * std::numeric_limits<Real>::epsilon();
    const Real one = compute(operation, a.low), other = compute(operation, a.high);
    // Slopes lie within -1 and 1.
    return {std::max<Real>(-1, std::min(one, other) - width / 2 - rounding),
            std::min<Real>(1, std::max(one, other) + width / 2 + rounding), a.may_be_nan};
  }
};

using Reals = Interval<double>;

/// Moves the ends outward by four units in the last place and four denormal numbers, which is more than the error of
/// any implementation of an operation.
Reals widened(const Reals& x) {
  constexpr double units = 4 * std::numeric_limits<double>::epsilon();
  constexpr double smallest = 4 * std::numeric_limits<double>::denorm_min();
  constexpr double largest = std::numeric_limits<double>::max();
  const double low = std::fmin(x.low, largest), high = std::fmax(x.high, -largest);
  return {low - (std::fabs(low) * units + smallest), high + (std::fabs(high) * units + smallest), x.may_be_nan};
}

/// Rules for real numbers: the rules of fp64, and wider ends where fp64 rounds.
Reals outward(Operation operation, const Reals& a, const Reals& b = {}, const Reals& c = {}) {
  const Reals result = Rules<double>::apply_to(operation, a, b, c);
  return is_exact(operation) ? result : widened(result);
}

Reals operator+(const Reals& a, const Reals& b) { return outward(Operation::add, a, b); }
Reals operator-(const Reals& a, const Reals& b) { return outward(Operation::subtract, a, b); }
Reals operator*(const Reals& a, const Reals& b) { return outward(Operation::multiply, a, b); }
Reals operator/(const Reals& a, const Reals& b) { return outward(Operation::divide, a, b); }

/// A function of |x| that falls, over an interval.
template <class Falling>
Reals falling_from_zero(const Reals& x, const Falling& f) {
  return widened({f(x.magnitude()), f(x.mignitude()), x.may_be_nan});
}

/// The slope of an operation of one operand, from the operand and the result.
Reals slope_of(Operation operation, const Reals& x, const Reals& result) {
  const auto number = [](double value) { return Reals::point(value); };
  switch (operation) {
    case Operation::negate:
      return number(-1);
    case Operation::absolute:
      return {x.low > 0 ? 1.0 : -1.0, x.high < 0 ? -1.0 : 1.0, x.may_be_nan};
    case Operation::sign:
    case Operation::floor:
      return number(0);
    case Operation::sqrt:
      return number(0.5) / result;
    case Operation::rsqrt:
      return number(-0.5) * result / x;
    case Operation::exp:
      return result;
    case Operation::exp2:
      return number(std::numbers::ln2) * result;
    case Operation::expm1:
      return outward(Operation::exp, x);
    case Operation::log:
      return number(1) / x;
    case Operation::log2:
      return number(std::numbers::log2e) / x;
    case Operation::log1p:
      return number(1) / (number(1) + x);
    case Operation::tanh:
      return falling_from_zero(x, [](double y) { return 1 / (std::cosh(y) * std::cosh(y)); });
    case Operation::sigmoid:
      return falling_from_zero(x, [](double y) { return 1 / ((1 + std::exp(y)) * (1 + std::exp(-y))); });
    case Operation::erf:
      return falling_from_zero(x, [](double y) { return 2 * std::numbers::inv_sqrtpi * std::exp(-y * y); });
    case Operation::softplus:
      return outward(Operation::sigmoid, x);
    case Operation::sin:
      return outward(Operation::cos, x);
    case Operation::cos:
      return outward(Operation::negate, outward(Operation::sin, x));
    default:
      return Reals::whole();
  }
}

ValueAndSlope apply_to(const Step& step, const ValueAndSlope& a, const ValueAndSlope& b, const ValueAndSlope& c) {
  const Operation operation = step.operation;
  const Reals value = outward(operation, a.value, b.value, c.value);
  switch (operation) {
    case Operation::add:
      return {value, a.slope + b.slope};
    case Operation::subtract:
      return {value, a.slope - b.slope};
    case Operation::multiply:
      return {value, a.slope * b.value + a.value * b.slope};
    case Operation::divide:
      return {value, (a.slope - value * b.slope) / b.value};
    case Operation::power:
      if (b.value.low != b.value.high) return {value, Reals::whole()};
      return {value, b.value * outward(Operation::power, a.value, b.value - Reals::point(1)) * a.slope};
    case Operation::minimum:
    case Operation::maximum: {
      const bool is_a = operation == Operation::minimum ? a.value.high < b.value.low : a.value.low > b.value.high;
      const bool is_b = operation == Operation::minimum ? b.value.high < a.value.low : b.value.low > a.value.high;
      return {value, is_a ? a.slope : is_b ? b.slope : hull(a.slope, b.slope)};
    }
    case Operation::floor_divide:
    case Operation::less:
    case Operation::less_equal:
    case Operation::equal:
      return {value, Reals::point(0)};
    case Operation::select:
      if (!a.value.contains(0)) return {value, b.slope};
      if (a.value.high == 0) return {value, c.slope};
      return {value, hull(b.slope, c.slope)};
    default:
      return {value, slope_of(operation, a.value, value) * a.slope};
  }
}

/// The intervals of the steps so far, and the steps that are equal to another step or to its negative. These equalities
/// prove that x + x * t is exactly 0 if t is -1, which the intervals of the operands do not prove.
template <class Real>
class Enclosing {
 public:
  explicit Enclosing(Interval<Real> scores) : scores_(scores) {}

  void add(const Step& step) {
    values_.push_back(rule(step));
    same_.push_back(same_as(step));
  }
  std::vector<Interval<Real>> values() && { return std::move(values_); }

 private:
  /// The step `of`, or its negative.
  struct Same {
    std::size_t of;
    bool is_negative;
  };

  Interval<Real> rule(const Step& step) const {
    if (step.operation == Operation::score) return scores_;
    if (step.operation == Operation::constant) return Interval<Real>::point(static_cast<Real>(step.number));
    // A statement about a function holds for all numbers that a call may pass.
    if (step.operation == Operation::input) return Interval<Real>::whole();
    if (is_sum(step.operation) && cancels(step)) {
      const Interval<Real>& x = values_[step.a];
      return {0, 0, x.may_be_nan || std::isinf(x.low) || std::isinf(x.high)};
    }
    return Rules<Real>::apply_to(step.operation, values_[step.a], values_[step.b], values_[step.c]);
  }

  bool cancels(const Step& step) const {
    const Same a = same_[step.a], b = same_[step.b];
    return a.of == b.of && (a.is_negative == b.is_negative) == (step.operation == Operation::subtract);
  }

  Same same_as(const Step& step) const {
    const auto is = [&](std::uint16_t operand, Real number) {
      const Interval<Real>& x = values_[operand];
      return x.low == number && x.high == number && !x.may_be_nan;
    };
    const auto as = [&](std::uint16_t operand, bool is_negative) {
      return Same{same_[operand].of, same_[operand].is_negative != is_negative};
    };
    if (step.operation == Operation::negate) return as(step.a, true);
    if (step.operation == Operation::multiply) {
      for (const bool is_negative : {false, true}) {
        const Real number = is_negative ? Real{-1} : Real{1};
        if (is(step.a, number)) return as(step.b, is_negative);
        if (is(step.b, number)) return as(step.a, is_negative);
      }
    }
    return {values_.size() - 1, false};
  }

  Interval<Real> scores_;
  std::vector<Interval<Real>> values_;
  std::vector<Same> same_;
};

}  // namespace

template <class Real>
std::vector<Interval<Real>> enclose_steps(const Program& program, Interval<Real> scores) {
  Enclosing<Real> enclosing(scores);
  for (const Step& step : program.steps) enclosing.add(step);
  return std::move(enclosing).values();
}

template <class Real>
std::vector<Interval<Real>> enclose(const Program& program, Interval<Real> scores) {
  const std::vector<Interval<Real>> steps = enclose_steps(program, scores);
  std::vector<Interval<Real>> results;
  for (const std::uint16_t result : program.results) results.push_back(steps[result]);
  return results;
}

template std::vector<Interval<float>> enclose_steps(const Program&, Interval<float>);
template std::vector<Interval<double>> enclose_steps(const Program&, Interval<double>);
template std::vector<Interval<float>> enclose(const Program&, Interval<float>);
template std::vector<Interval<double>> enclose(const Program&, Interval<double>);

namespace {

/// Whether every fp64 arithmetic gives the same result. A sum with a product may be rounded once or twice.
bool is_rounded_alike(const Step& step, const Program& program) {
  const auto is_product = [&](std::uint16_t operand) {
    return program.steps[operand].operation == Operation::multiply;
  };
  if (is_sum(step.operation)) return !is_product(step.a) && !is_product(step.b);
  constexpr Operation rounded_to_nearest[] = {Operation::multiply, Operation::divide, Operation::floor_divide,
                                              Operation::sqrt};
  return is_exact(step.operation) || std::ranges::count(rounded_to_nearest, step.operation) > 0;
}

}  // namespace

Interval<double> enclose_outward(const Program& program, const std::vector<Interval<double>>& inputs) {
  const auto leaf = [&](const Step& step) {
    return step.is_input() ? inputs[step.input()] : Reals::point(step.number);
  };
  const auto rule = [&](const Step& step, const Reals& a, const Reals& b, const Reals& c) {
    const Reals value = Rules<double>::apply_to(step.operation, a, b, c);
    return is_rounded_alike(step, program) ? value : widened(value);
  };
  return values_of(program, leaf, rule)[program.results[0]];
}

ValueAndSlope enclose_derivative(const Program& program, Interval<double> scores) {
  const auto leaf = [&](const Step& step) -> ValueAndSlope {
    if (step.operation == Operation::score) return {scores, Reals::point(1)};
    return {step.is_number() ? Reals::point(step.number) : Reals::whole(), Reals::point(0)};
  };
  return values_of(program, leaf, apply_to)[program.results[0]];
}

}  // namespace gdpa::activation
