// See scalar.h.
#include "expression/scalar.h"

#include <cmath>
#include <limits>

namespace gdpa::activation {

namespace {

double with_nan(double a, double b, double result) {
  return std::isnan(a) || std::isnan(b) ? std::numeric_limits<double>::quiet_NaN() : result;
}

}  // namespace

bool is_exact(Operation operation) {
  return (operation >= Operation::negate && operation <= Operation::floor) || operation >= Operation::minimum;
}

double apply(Operation operation, double a, double b, double c) {
  switch (operation) {
    case Operation::constant:
    case Operation::score:
    case Operation::input:
      break;
    case Operation::add:
      return a + b;
    case Operation::subtract:
      return a - b;
    case Operation::multiply:
      return a * b;
    case Operation::divide:
      return a / b;
    case Operation::floor_divide:
      return std::floor(a / b);
    case Operation::power:
      return std::pow(a, b);
    case Operation::negate:
      return -a;
    case Operation::absolute:
      return std::fabs(a);
    case Operation::sign:
      return a > 0 ? 1 : a < 0 ? -1 : a;  // keeps NaN
    case Operation::floor:
      return std::floor(a);
    case Operation::sqrt:
      return std::sqrt(a);
    case Operation::rsqrt:
      return 1 / std::sqrt(a);
    case Operation::exp:
      return std::exp(a);
    case Operation::exp2:
      return std::exp2(a);
    case Operation::expm1:
      return std::expm1(a);
    case Operation::log:
      return std::log(a);
    case Operation::log2:
      return std::log2(a);
    case Operation::log1p:
      return std::log1p(a);
    case Operation::tanh:
      return std::tanh(a);
    case Operation::sigmoid:
      return 1 / (1 + std::exp(-a));
    case Operation::erf:
      return std::erf(a);
    case Operation::softplus:
      return with_nan(a, a, std::fmax(a, 0) + std::log1p(std::exp(-std::fabs(a))));
    case Operation::sin:
      return std::sin(a);
    case Operation::cos:
      return std::cos(a);
    case Operation::minimum:
      return with_nan(a, b, std::fmin(a, b));
    case Operation::maximum:
      return with_nan(a, b, std::fmax(a, b));
    case Operation::less:
      return a < b ? 1 : 0;
    case Operation::less_equal:
      return a <= b ? 1 : 0;
    case Operation::equal:
      return a == b ? 1 : 0;
    case Operation::select:
      return a != 0 ? b : c;
  }
  return 0;
}

float apply_in_fp32(Operation operation, float a, float b, float c) {
  // The fast division: PTX promises 0, or NaN for an infinity, where the divisor's reciprocal would be denormal.
  const bool is_denormal = std::isfinite(b) && std::fabs(b) > 0x1p126F;
  if (operation == Operation::divide && is_denormal) return a * 0.0F;
  // fp64 rounded to fp32 is fp32's own result for +, -, * and /.
  return static_cast<float>(apply(operation, double{a}, double{b}, double{c}));
}

}  // namespace gdpa::activation
