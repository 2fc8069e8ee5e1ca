// Prints a program as CUDA C++: one statement for each step. Three arithmetics exist: fp32 for f and its derivatives,
// the types of C++ for indices and conditions, and intervals for the bounds of conditions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "expression/input.h"
#include "expression/program.h"
#include "expression/rewrite/interval.h"
#include "gdpa/activation.h"

namespace gdpa::activation {

/// Returns a literal of CUDA C++ for the number rounded to fp32.
std::string literal(double number);

/// Returns a literal of CUDA C++: an integer of the smallest type where the number is one, otherwise fp32.
std::string index_literal(double number);

/// Returns the expression of a position in the generated structs.
std::string_view position_of(Index index);

/// Returns a member function of a generated struct.
std::string member(std::string_view signature, std::string_view statements);

/// Returns a member function that returns an expression, in one line.
std::string getter(std::string_view signature, std::string_view expression);

/// Returns the constructor of a struct from the parameters and the sequences of a head and batch entry.
std::string constructor_of_pair(std::string_view name, std::string_view statements);

/// Returns the member of(), which calls this constructor.
std::string of_pair(std::string_view name);

/// The walk that all arithmetics share: `const <type> <prefix><step> = <expression>;`.
class ProgramPrinter {
 public:
  virtual ~ProgramPrinter() = default;

  /// Returns the statements of all steps.
  std::string statements() const;

  /// Returns the statements of the steps that this step needs, up to those with a name, and of the step.
  std::string statements_of(std::uint16_t step) const;

  /// Returns the statement of one step: "    const auto c5 = query + pair.length_k;\n", or nothing for a constant, an
  /// input and a step with a name.
  std::string statement(std::uint16_t step) const;

  /// Gives a step a name in place of the variable that its statement declares.
  void name(std::uint16_t step, std::string name) { names_[step] = std::move(name); }

  /// Returns the expression of a step that has been computed.
  std::string operand(std::uint16_t step) const;
  std::string result(std::size_t index = 0) const { return operand(program_.results[index]); }

 protected:
  ProgramPrinter(const Program& program, const std::vector<Input>& inputs, std::string prefix)
      : program_(program), inputs_(inputs), prefix_(std::move(prefix)) {}

  virtual std::string number(double number) const = 0;
  virtual std::string input(std::size_t input) const = 0;
  virtual std::string_view type_of(const Step&) const { return "auto"; }

  /// The operators of C++ where the step has one, otherwise a call of `function`.
  virtual std::string expression(const Step& step) const;
  virtual std::string function(const Step& step) const = 0;

  const Step& at(std::uint16_t step) const { return program_.steps[step]; }
  bool is_number(std::uint16_t step) const { return at(step).is_number(); }

  /// "name(a, b)". With a `cast`, "name(cast(a), cast(b))".
  std::string call(std::string_view name, const Step& step, std::string_view cast = {}) const;

  const Program& program_;
  const std::vector<Input>& inputs_;

 private:
  std::string prefix_;
  std::map<std::uint16_t, std::string> names_;
};

/// fp32, with the elementary functions of kernels/common/elementary.cuh. The score is `x`. Inputs are members of `in`,
/// or of the array `parameters` if they are numbers of the head.
class RealPrinter : public ProgramPrinter {
 public:
  /// The input after `inputs` is the scale, which follows the numbers of `tensors` tensors. The next one is dP.
  RealPrinter(const Program& program, const std::vector<Input>& inputs, Accuracy accuracy, std::size_t tensors = 0)
      : ProgramPrinter(program, inputs, "v"),
        tensors_(tensors),
        level_(accuracy == Accuracy::fast ? "gdpa::fast::" : "gdpa::exact::") {}

 private:
  std::string number(double number) const override { return literal(number); }
  std::string input(std::size_t input) const override;
  std::string_view type_of(const Step& step) const override { return is_comparison(step.operation) ? "bool" : "float"; }
  std::string function(const Step& step) const override;

  std::size_t tensors_;
  std::string level_;
};

/// The arithmetic of kernels/common/index.cuh: positions are int, a tensor of integers has its own type, and every
/// other number is float. The inputs are `n<input>` (numbers), `r<input>` (elements that are read) and positions.
class IndexPrinter : public ProgramPrinter {
 public:
  IndexPrinter(const Program& program, const std::vector<Input>& inputs, std::string prefix);

  /// The numbers that a step can have.
  Interval<double> range_of(std::uint16_t step) const;

  /// Whether the index is never negative. NaN counts as 0.
  bool is_non_negative() const { return ranges_[program_.results[0]].low >= 0; }

 private:
  std::string number(double number) const override { return index_literal(number); }
  std::string input(std::size_t input) const override;
  std::string expression(const Step& step) const override;
  std::string function(const Step& step) const override;
  bool is_bounded_above(std::uint16_t step, double most) const;
  bool is_floor_log2_from(std::uint16_t step) const;
  std::string floor_log2(std::uint16_t floor) const;

  std::vector<Interval<double>> ranges_;  ///< the numbers that each step can have
};

/// The arithmetic of kernels/common/bounds.cuh. The elements of a read that varies in a head are within `b<input>`.
class BoundsPrinter : public ProgramPrinter {
 public:
  BoundsPrinter(const Program& program, const std::vector<Input>& inputs, std::string prefix)
      : ProgramPrinter(program, inputs, std::move(prefix)) {}

 private:
  std::string number(double number) const override;
  std::string input(std::size_t input) const override;
  std::string expression(const Step& step) const override { return function(step); }
  std::string function(const Step& step) const override;
};

}  // namespace gdpa::activation
