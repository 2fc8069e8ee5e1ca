// Program: a function of the score as straight-line code, for the CPU evaluator and the CUDA printer. It is generated
// from the expression tree and shares common subexpressions. One program computes f and f'.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace gdpa::activation {

/// The ends of the ranges of scores.
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr float greatest_fp32 = std::numeric_limits<float>::max();

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

/// The name of an elementary function of one argument, in the expression language and in kernels/common/elementary.cuh;
/// empty for every other operation.
constexpr std::string_view elementary_name(Operation operation) {
  switch (operation) {
    case Operation::sqrt:
      return "sqrt";
    case Operation::rsqrt:
      return "rsqrt";
    case Operation::exp:
      return "exp";
    case Operation::exp2:
      return "exp2";
    case Operation::expm1:
      return "expm1";
    case Operation::log:
      return "log";
    case Operation::log2:
      return "log2";
    case Operation::log1p:
      return "log1p";
    case Operation::tanh:
      return "tanh";
    case Operation::sigmoid:
      return "sigmoid";
    case Operation::erf:
      return "erf";
    case Operation::softplus:
      return "softplus";
    case Operation::sin:
      return "sin";
    case Operation::cos:
      return "cos";
    default:
      return {};
  }
}

/// One step. Operands are the indices of earlier steps; unused ones are 0.
struct Step {
  Operation operation = Operation::constant;
  std::uint16_t a = 0;
  std::uint16_t b = 0;
  std::uint16_t c = 0;
  double number = 0;  ///< for Operation::constant and Operation::input
};

/// Steps in order of evaluation. `results` are the steps of the results: {f} or {f, f'}.
struct Program {
  std::vector<Step> steps;
  std::vector<std::uint16_t> results;
};

}  // namespace gdpa::activation
