// Program: a function of the score as straight-line code, the form in which the CPU evaluator and the CUDA printer
// receive it. Made from the expression tree, common subexpressions shared; f and f' come from one program.
#pragma once

#include <cstdint>
#include <vector>

namespace gdpa::activation {

/// What one step computes. Comparisons give a truth value, which only `select` reads. min, max and clamp give NaN
/// where an operand is NaN, as PyTorch does.
enum class Operation : std::uint8_t {
  constant,  // number
  score,     // s
  add,
  subtract,
  multiply,
  divide,
  power,  // a ^ b for an exponent that no product or root expresses
  negate,
  absolute,
  sign,
  sqrt,
  rsqrt,
  exp,
  exp2,
  expm1,
  log,
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

/// One step. Operands are the indices of earlier steps; unused ones are 0.
struct Step {
  Operation operation = Operation::constant;
  std::uint16_t a = 0;
  std::uint16_t b = 0;
  std::uint16_t c = 0;
  double number = 0;  ///< for Operation::constant
};

/// Steps in order of evaluation. `results` are the steps whose values are wanted: {f} or {f, f'}.
struct Program {
  std::vector<Step> steps;
  std::vector<std::uint16_t> results;
};

}  // namespace gdpa::activation
