// Program: a function of the score as straight-line code, for the CPU evaluator and the CUDA printer. It is generated
// from the expression tree and shares common subexpressions. One program computes f and f'.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "expression/operation.h"

namespace gdpa::activation {

/// The ends of the ranges of scores.
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr float greatest_fp32 = std::numeric_limits<float>::max();

/// One step. Operands are the indices of earlier steps; unused ones are 0.
struct Step {
  Operation operation = Operation::constant;
  std::uint16_t a = 0;
  std::uint16_t b = 0;
  std::uint16_t c = 0;
  double number = 0;  ///< for Operation::constant and Operation::input
};

/// Calls `visit` with a reference to each operand of a step, or of a node of a tree.
template <class Of, class Visit>
void for_each_operand(Of& of, const Visit& visit) {
  const int count = operand_count(of.operation);
  if (count > 0) visit(of.a);
  if (count > 1) visit(of.b);
  if (count > 2) visit(of.c);
}

/// Returns the steps that a step of a program reads.
inline std::vector<std::uint16_t> operands_of(const Step& step) {
  std::vector<std::uint16_t> operands;
  for_each_operand(step, [&](std::uint16_t operand) { operands.push_back(operand); });
  return operands;
}

/// Steps in order of evaluation. `results` are the steps of the results: {f} or {f, f'}.
struct Program {
  std::vector<Step> steps;
  std::vector<std::uint16_t> results;
};

}  // namespace gdpa::activation
