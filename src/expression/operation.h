// Operation: what a step of a program or a node of a tree computes, and its value by the standard library. The value
// folds constants and evaluates programs for Activation::value. src/cpu has the vectorised evaluator.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

namespace gdpa::activation {

/// The operation of a step. Comparisons give a truth value, which only `select` reads. min, max and clamp give NaN if
/// an operand is NaN, as in PyTorch.
enum class Operation : std::uint8_t {
  constant,  // number
  score,     // s
  input,     // a number that does not depend on the score (input.h); `number` is its index in Function::inputs()
  add,
  subtract,
  multiply,
  divide,
  floor_divide,  // the floor of a / b
  power,         // a ^ b for an exponent that is neither a product nor a root
  negate,
  absolute,
  sign,
  floor,
  sqrt,
  rsqrt,
  exp,
  exp2,
  expm1,
  log,
  log2,
  log1p,
  tanh,
  sigmoid,
  erf,
  softplus,
  sin,
  cos,
  minimum,
  maximum,
  less,
  less_equal,
  equal,
  select,  // a ? b : c
};

inline double with_nan(double a, double b, double result) {
  return std::isnan(a) || std::isnan(b) ? std::numeric_limits<double>::quiet_NaN() : result;
}

/// The number of operands of an operation, its name in the headers of kernels/common, and its value in fp64. A leaf
/// computes nothing. 1 and 0 mean true and false.
struct OperationInfo {
  Operation operation;
  int operands;
  std::string_view name;
  double (*value)(double a, double b, double c) = nullptr;
};
inline constexpr OperationInfo operation_infos[] = {
    {Operation::constant, 0, "constant"},
    {Operation::score, 0, "score"},
    {Operation::input, 0, "input"},
    {Operation::add, 2, "add", [](double a, double b, double) { return a + b; }},
    {Operation::subtract, 2, "subtract", [](double a, double b, double) { return a - b; }},
    {Operation::multiply, 2, "multiply", [](double a, double b, double) { return a * b; }},
    {Operation::divide, 2, "divide", [](double a, double b, double) { return a / b; }},
    {Operation::floor_divide, 2, "floor_divide", [](double a, double b, double) { return std::floor(a / b); }},
    {Operation::power, 2, "power", [](double a, double b, double) { return std::pow(a, b); }},
    {Operation::negate, 1, "negate", [](double a, double, double) { return -a; }},
    {Operation::absolute, 1, "absolute", [](double a, double, double) { return std::fabs(a); }},
    {Operation::sign, 1, "sign",
     [](double a, double, double) { return a == 0 || std::isnan(a) ? a : std::copysign(1.0, a); }},
    {Operation::floor, 1, "floor", [](double a, double, double) { return std::floor(a); }},
    {Operation::sqrt, 1, "sqrt", [](double a, double, double) { return std::sqrt(a); }},
    {Operation::rsqrt, 1, "rsqrt", [](double a, double, double) { return 1 / std::sqrt(a); }},
    {Operation::exp, 1, "exp", [](double a, double, double) { return std::exp(a); }},
    {Operation::exp2, 1, "exp2", [](double a, double, double) { return std::exp2(a); }},
    {Operation::expm1, 1, "expm1", [](double a, double, double) { return std::expm1(a); }},
    {Operation::log, 1, "log", [](double a, double, double) { return std::log(a); }},
    {Operation::log2, 1, "log2", [](double a, double, double) { return std::log2(a); }},
    {Operation::log1p, 1, "log1p", [](double a, double, double) { return std::log1p(a); }},
    {Operation::tanh, 1, "tanh", [](double a, double, double) { return std::tanh(a); }},
    {Operation::sigmoid, 1, "sigmoid", [](double a, double, double) { return 1 / (1 + std::exp(-a)); }},
    {Operation::erf, 1, "erf", [](double a, double, double) { return std::erf(a); }},
    {Operation::softplus, 1, "softplus",
     [](double a, double, double) { return with_nan(a, a, std::fmax(a, 0) + std::log1p(std::exp(-std::fabs(a)))); }},
    {Operation::sin, 1, "sin", [](double a, double, double) { return std::sin(a); }},
    {Operation::cos, 1, "cos", [](double a, double, double) { return std::cos(a); }},
    {Operation::minimum, 2, "minimum", [](double a, double b, double) { return with_nan(a, b, std::fmin(a, b)); }},
    {Operation::maximum, 2, "maximum", [](double a, double b, double) { return with_nan(a, b, std::fmax(a, b)); }},
    {Operation::less, 2, "less", [](double a, double b, double) { return a < b ? 1.0 : 0.0; }},
    {Operation::less_equal, 2, "less_equal", [](double a, double b, double) { return a <= b ? 1.0 : 0.0; }},
    {Operation::equal, 2, "equal", [](double a, double b, double) { return a == b ? 1.0 : 0.0; }},
    {Operation::select, 3, "select", [](double a, double b, double c) { return a != 0 ? b : c; }},
};
static_assert(std::size(operation_infos) == static_cast<std::size_t>(Operation::select) + 1 &&
                  std::ranges::is_sorted(operation_infos, {}, &OperationInfo::operation),
              "one row for each operation, in the order of Operation");

constexpr const OperationInfo& info_of(Operation operation) {
  return operation_infos[static_cast<std::size_t>(operation)];
}
constexpr int operand_count(Operation operation) { return info_of(operation).operands; }
constexpr std::string_view operation_name(Operation operation) { return info_of(operation).name; }

/// Returns the value of an operation.
inline double apply(Operation operation, double a, double b = 0, double c = 0) {
  return info_of(operation).value(a, b, c);
}

/// The same in fp32, as on a GPU but without the errors of elementary functions: a result that overflows on a GPU also
/// overflows here.
inline float apply_in_fp32(Operation operation, float a, float b = 0, float c = 0) {
  // The fast division: PTX promises 0, or NaN for an infinity, where the divisor's reciprocal would be denormal.
  const bool is_denormal = std::isfinite(b) && std::fabs(b) > 0x1p126F;
  if (operation == Operation::divide && is_denormal) return a * 0.0F;
  // fp64 rounded to fp32 is fp32's own result for +, -, * and /.
  return static_cast<float>(apply(operation, double{a}, double{b}, double{c}));
}

/// Whether the operation is a function of one argument that implementations approximate. The expression language has it
/// under the same name.
constexpr bool is_elementary(Operation operation) {
  return operation >= Operation::sqrt && operation <= Operation::cos;
}

constexpr bool is_comparison(Operation operation) {
  return operation == Operation::less || operation == Operation::less_equal || operation == Operation::equal;
}

constexpr bool is_sum(Operation operation) { return operation == Operation::add || operation == Operation::subtract; }

constexpr bool is_extremum(Operation operation) {
  return operation == Operation::minimum || operation == Operation::maximum;
}

/// Whether the operands of the operation may change places.
constexpr bool commutes(Operation operation) {
  return operation == Operation::add || operation == Operation::multiply || operation == Operation::minimum ||
         operation == Operation::maximum || operation == Operation::equal;
}

/// Whether the result of the operation is one of its operands, its negative, or a small integer, so that arithmetic in
/// any precision gives it without rounding.
constexpr bool is_exact(Operation operation) {
  return (operation >= Operation::negate && operation <= Operation::floor) || operation >= Operation::minimum;
}

}  // namespace gdpa::activation
