// See degree.h.
#include "expression/rewrite/degree.h"

#include <cmath>
#include <vector>

#include "expression/tree.h"

namespace gdpa::activation {

namespace {

/// The known degree of a step. Zero has every degree, so it can be added to or compared with every step.
struct Degree {
  bool is_known = false;
  bool is_zero = false;
  double number = 0;
};

/// The degree of a sum, a bound or a choice: the common degree of both operands.
Degree common(const Degree& a, const Degree& b) {
  if (!a.is_known || !b.is_known) return {};
  if (a.is_zero) return b;
  return b.is_zero || a.number == b.number ? a : Degree{};
}

class Degrees {
 public:
  explicit Degrees(const Program& program) : program_(program) {
    for (const Step& step : program.steps) degrees_.push_back(rule(step));
  }

  const Degree& of(std::uint16_t step) const { return degrees_[step]; }

 private:
  static Degree known(double number) { return {true, false, number}; }

  Degree rule(const Step& step) const {
    const int operands = operand_count(step.operation);
    const Degree a = operands > 0 ? of(step.a) : Degree{}, b = operands > 1 ? of(step.b) : Degree{};
    switch (step.operation) {
      case Operation::constant:
        return {true, step.number == 0, 0};
      case Operation::score:
        return known(1);
      case Operation::input:
        return known(0);
      case Operation::add:
      case Operation::subtract:
      case Operation::minimum:
      case Operation::maximum:
        return common(a, b);
      case Operation::multiply:
        return product(a, b, 1);
      case Operation::divide:
        return product(a, b, -1);
      case Operation::negate:
      case Operation::absolute:
        return a;
      case Operation::sign:
        return a.is_known ? known(0) : Degree{};
      case Operation::sqrt:
        return a.is_known ? Degree{true, a.is_zero, a.number / 2} : Degree{};
      case Operation::rsqrt:
        return a.is_known && !a.is_zero ? known(-a.number / 2) : Degree{};
      case Operation::power:
        return power(a, program_.steps[step.b]);
      case Operation::less:
      case Operation::less_equal:
      case Operation::equal:
        return common(a, b).is_known ? known(0) : Degree{};
      case Operation::select:
        return a.is_known ? common(b, of(step.c)) : Degree{};
      default:  // exp and similar functions
        return a.is_known && !a.is_zero && a.number == 0 ? a : Degree{};
    }
  }

  static Degree product(const Degree& a, const Degree& b, double sign) {
    if (!a.is_known || !b.is_known || (sign < 0 && b.is_zero)) return {};
    return {true, a.is_zero || b.is_zero, a.number + sign * b.number};
  }

  static Degree power(const Degree& base, const Step& exponent) {
    if (!base.is_known || base.is_zero || exponent.operation != Operation::constant) return {};
    return known(base.number * exponent.number);
  }

  const Program& program_;
  std::vector<Degree> degrees_;
};

}  // namespace

std::optional<double> degree_of(const Program& value) {
  const Degree degree = Degrees(value).of(value.results[0]);
  if (!degree.is_known || !std::isfinite(degree.number)) return std::nullopt;
  return degree.number;
}

}  // namespace gdpa::activation
