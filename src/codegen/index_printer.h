// Prints the program of an index or of a condition as CUDA C++, in the arithmetic of common/index.cuh.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "expression/function.h"
#include "expression/rewrite/interval.h"

namespace gdpa::activation {

/// Returns the expression of a position in the generated structs.
std::string_view position_of(Index index);

/// Prints a program whose inputs are `n<input>` (numbers), `r<input>` (elements that are read) and positions.
class IndexPrinter {
 public:
  /// The variables of the program begin with `prefix`.
  IndexPrinter(const Function& function, const Program& program, std::string prefix);

  /// Returns the statements of all steps.
  std::string statements() const;

  /// Gives a step a name in place of the variable that its statement declares.
  void name(std::uint16_t step, std::string name) { names_[step] = std::move(name); }

  /// Returns the statements of the steps that this step needs, up to those with a name, and of the step.
  std::string statements_of(std::uint16_t step) const;

  /// Returns the statement of one step: "    const auto c5 = query + pair.length_k;\n", or nothing for a constant or an
  /// input.
  std::string statement(std::uint16_t step) const;

  /// Returns the expression of a step that has been computed.
  std::string operand(std::uint16_t step) const;

  std::string result() const { return operand(program_.results[0]); }

  /// The numbers that a step can have.
  Interval<double> range_of(std::uint16_t step) const;

  /// Whether the index is never negative. NaN counts as 0.
  bool is_non_negative() const { return ranges_[program_.results[0]].low >= 0; }

 private:
  bool is_number(std::uint16_t step) const { return program_.steps[step].operation == Operation::constant; }
  bool is_bounded_above(std::uint16_t step, double most) const;
  bool is_floor_log2_from(std::uint16_t step) const;
  std::string floor_log2(std::uint16_t floor, std::uint16_t x) const;
  std::string call(const Step& step, std::string_view name) const;
  std::string infix(const Step& step, std::string_view sign) const;
  std::string elementary(const Step& step, std::string_view name) const;
  std::string expression(const Step& step) const;

  const Function& function_;
  const Program& program_;
  std::string prefix_;
  std::map<std::uint16_t, std::string> names_;
  std::vector<Interval<double>> ranges_;  ///< the numbers that each step can have
};

}  // namespace gdpa::activation
