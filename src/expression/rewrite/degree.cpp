// The degree of a homogeneous function: see degree_of() in forms.h.
#include "expression/rewrite/forms.h"

#include <cmath>
#include <vector>

namespace gdpa::activation {

namespace {

/// The known degree of a step. Zero has every degree, so it can be added to or compared with every step.
struct Degree {
  bool is_known = false;
  bool is_zero = false;
  double number = 0;
};

/// The degree of a sum, a bound or a choice: the common degree of both operands.
Degree common_degree(const Degree& a, const Degree& b) {
  if (!a.is_known || !b.is_known) return {};
  if (a.is_zero) return b;
  return b.is_zero || a.number == b.number ? a : Degree{};
}

Degree known_degree(double number) { return {true, false, number}; }

Degree product_degree(const Degree& a, const Degree& b, double sign) {
  if (!a.is_known || !b.is_known || (sign < 0 && b.is_zero)) return {};
  return {true, a.is_zero || b.is_zero, a.number + sign * b.number};
}

Degree degree_of_leaf(const Step& step) {
  if (step.is_number()) return {true, step.number == 0, 0};
  return known_degree(step.operation == Operation::score ? 1 : 0);
}

/// `exponent`: the second operand.
Degree degree_of_step(Operation operation, const Step& exponent, const Degree& a, const Degree& b, const Degree& c) {
  switch (operation) {
    case Operation::add:
    case Operation::subtract:
    case Operation::minimum:
    case Operation::maximum:
      return common_degree(a, b);
    case Operation::multiply:
      return product_degree(a, b, 1);
    case Operation::divide:
      return product_degree(a, b, -1);
    case Operation::floor_divide: {
      const Degree quotient = product_degree(a, b, -1);
      return quotient.number == 0 ? quotient : Degree{};
    }
    case Operation::negate:
    case Operation::absolute:
      return a;
    case Operation::sign:
      return a.is_known ? known_degree(0) : Degree{};
    case Operation::sqrt:
      return a.is_known ? Degree{true, a.is_zero, a.number / 2} : Degree{};
    case Operation::rsqrt:
      return a.is_known && !a.is_zero ? known_degree(-a.number / 2) : Degree{};
    case Operation::power:
      return a.is_known && !a.is_zero && exponent.is_number() ? known_degree(a.number * exponent.number) : Degree{};
    case Operation::less:
    case Operation::less_equal:
    case Operation::equal:
      return common_degree(a, b).is_known ? known_degree(0) : Degree{};
    case Operation::select:
      return a.is_known ? common_degree(b, c) : Degree{};
    default:  // exp and similar functions
      return a.is_known && !a.is_zero && a.number == 0 ? a : Degree{};
  }
}

}  // namespace

std::optional<double> degree_of(const Program& value) {
  const auto of_step = [&](const Step& step, const Degree& a, const Degree& b, const Degree& c) {
    return degree_of_step(step.operation, value.steps[step.b], a, b, c);
  };
  const Degree degree = values_of(value, degree_of_leaf, of_step)[value.results[0]];
  if (!degree.is_known || !std::isfinite(degree.number)) return std::nullopt;
  return degree.number;
}

}  // namespace gdpa::activation
