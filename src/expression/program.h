// Program: a function of the score as straight-line code, for the CPU evaluator and the CUDA printer. It is generated
// from the expression tree and shares common subexpressions. One program computes f and f'.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
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

  bool is_number() const { return operation == Operation::constant; }
  bool is_number(double value) const { return is_number() && number == value; }
  bool is_input() const { return operation == Operation::input; }
  std::size_t input() const { return static_cast<std::size_t>(number); }  ///< the index in Function::inputs()
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

/// Returns the inputs that the steps of a program read.
inline std::vector<std::size_t> inputs_of(const Program& program) {
  std::vector<std::size_t> inputs;
  for (const Step& step : program.steps) {
    if (step.is_input()) inputs.push_back(step.input());
  }
  return inputs;
}

/// Returns something for each step: leaf(step) of a constant, the score or an input, and of an operation
/// compute(step, a, b, c) with what its operands have.
template <class Leaf, class Compute>
auto values_of(const Program& program, const Leaf& leaf, const Compute& compute) {
  std::vector<std::invoke_result_t<Leaf, const Step&>> values;
  values.reserve(program.steps.size());
  for (const Step& step : program.steps) {
    const bool is_leaf = operand_count(step.operation) == 0;
    values.push_back(is_leaf ? leaf(step) : compute(step, values[step.a], values[step.b], values[step.c]));
  }
  return values;
}

}  // namespace gdpa::activation
