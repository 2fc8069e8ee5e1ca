// Program: a function of the score as straight-line code, for the CPU evaluator and the CUDA printer. It is generated
// from the expression tree and shares common subexpressions. One program computes f and f'.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
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

/// The number of operands of an operation, and its name in the headers of kernels/common.
struct OperationInfo {
  Operation operation;
  int operands;
  std::string_view name;
};
constexpr std::array operation_infos = {OperationInfo{Operation::constant, 0, "constant"},
                                        OperationInfo{Operation::score, 0, "score"},
                                        OperationInfo{Operation::input, 0, "input"},
                                        OperationInfo{Operation::add, 2, "add"},
                                        OperationInfo{Operation::subtract, 2, "subtract"},
                                        OperationInfo{Operation::multiply, 2, "multiply"},
                                        OperationInfo{Operation::divide, 2, "divide"},
                                        OperationInfo{Operation::floor_divide, 2, "floor_divide"},
                                        OperationInfo{Operation::power, 2, "power"},
                                        OperationInfo{Operation::negate, 1, "negate"},
                                        OperationInfo{Operation::absolute, 1, "absolute"},
                                        OperationInfo{Operation::sign, 1, "sign"},
                                        OperationInfo{Operation::floor, 1, "floor"},
                                        OperationInfo{Operation::sqrt, 1, "sqrt"},
                                        OperationInfo{Operation::rsqrt, 1, "rsqrt"},
                                        OperationInfo{Operation::exp, 1, "exp"},
                                        OperationInfo{Operation::exp2, 1, "exp2"},
                                        OperationInfo{Operation::expm1, 1, "expm1"},
                                        OperationInfo{Operation::log, 1, "log"},
                                        OperationInfo{Operation::log2, 1, "log2"},
                                        OperationInfo{Operation::log1p, 1, "log1p"},
                                        OperationInfo{Operation::tanh, 1, "tanh"},
                                        OperationInfo{Operation::sigmoid, 1, "sigmoid"},
                                        OperationInfo{Operation::erf, 1, "erf"},
                                        OperationInfo{Operation::softplus, 1, "softplus"},
                                        OperationInfo{Operation::sin, 1, "sin"},
                                        OperationInfo{Operation::cos, 1, "cos"},
                                        OperationInfo{Operation::minimum, 2, "minimum"},
                                        OperationInfo{Operation::maximum, 2, "maximum"},
                                        OperationInfo{Operation::less, 2, "less"},
                                        OperationInfo{Operation::less_equal, 2, "less_equal"},
                                        OperationInfo{Operation::equal, 2, "equal"},
                                        OperationInfo{Operation::select, 3, "select"}};
static_assert(operation_infos.size() == static_cast<std::size_t>(Operation::select) + 1 &&
                  std::ranges::is_sorted(operation_infos, {}, &OperationInfo::operation),
              "one row for each operation, in the order of Operation");

constexpr int operand_count(Operation operation) {
  return operation_infos[static_cast<std::size_t>(operation)].operands;
}
constexpr std::string_view operation_name(Operation operation) {
  return operation_infos[static_cast<std::size_t>(operation)].name;
}

/// Whether the operation is a function of one argument that implementations approximate. The expression language has it
/// under the same name.
constexpr bool is_elementary(Operation operation) {
  return operation >= Operation::sqrt && operation <= Operation::cos;
}

constexpr bool is_comparison(Operation operation) {
  return operation == Operation::less || operation == Operation::less_equal || operation == Operation::equal;
}

/// Whether the operands of the operation may change places.
constexpr bool commutes(Operation operation) {
  return operation == Operation::add || operation == Operation::multiply || operation == Operation::minimum ||
         operation == Operation::maximum || operation == Operation::equal;
}

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
