// Printers of the inputs of an expression as CUDA C++, from which the structs of cuda_inputs.h and cuda_gradients.h are
// made. An index is printed with the types of C++: positions are int, a tensor of integers has its own type, and every
// other number is float. The functions of common/index.cuh keep integers exact.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/cuda_inputs.h"
#include "codegen/index_printer.h"
#include "expression/lookup.h"

namespace gdpa::activation {

/// Whether an input is not the same for all scores of a head.
inline bool is_at_position(const Input& input) { return input.kind != Input::Kind::number; }

struct Section : ConditionInputs::Section {
  void add(std::string_view type, const std::string& name) {
    members += fmt::format("    {} {};\n", type, name);
    names += (names.empty() ? "" : ", ") + name;
    copies += fmt::format("    const auto {0} = {{0}}.{0};\n", name);
  }
};

/// The text of a struct that computes the inputs of a position. Everything that is the same for all scores of a head
/// and batch entry is a member, which the constructor computes. Every other statement is in the section of the
/// positions that it depends on.
struct InputsText {
  std::string members;
  std::string constructor;  ///< statements; the arguments are `params` and `pair_`
  Section of_query;         ///< the argument is `query`
  Section of_key;           ///< the argument is `key`
  Section of_difference;    ///< the arguments are `query` and `key`
  std::string tile_load;    ///< the statement of of_both that loads the element of tile_read()
  std::string of_both;      ///< statements; the arguments are `query` and `key`, and the variables of all sections
  std::string struct_members;
  std::string values;  ///< the initializers of the struct Inputs

  /// All statements for one position, in an order in which each variable is declared before it is read.
  std::string at() const {
    return of_query.statements + of_key.statements + of_difference.statements + tile_load + of_both;
  }

  Section* section_of(Dependence on) {
    switch (on) {
      case Dependence::query:
        return &of_query;
      case Dependence::key:
        return &of_key;
      case Dependence::difference:
        return &of_difference;
      case Dependence::none:
      case Dependence::both:
        break;
    }
    return nullptr;
  }
  std::string& statements_of(Dependence on) {
    Section* const section = section_of(on);
    return section == nullptr ? of_both : section->statements;
  }
};

/// Prints the inputs of an expression.
class InputsPrinter {
 public:
  /// `wanted` has bit n if also the offsets in the gradient of tensor n are printed (grad_offset). `checks`: all
  /// statements are in the section of both positions, and a statement after each index returns if it is wrong.
  InputsPrinter(const Function& function, unsigned tensor_types, unsigned wanted, Expression expression,
                bool checks = false);
  /// The same, where the elements of these lookups are staged. The statements of both positions read them from
  /// `lookups`, and the difference of `lookup_difference()`, if there is one, is `apart`.
  InputsPrinter(const Function& function, unsigned tensor_types, const std::vector<Lookup>& lookups);

  const InputsText& text() const { return text_; }

  /// The element of a read in the sums of the gradient, counted from the first one of the head and batch entry, after
  /// the statements of `at`.
  std::string grad_element(std::size_t input) const {
    std::string element;
    for (const std::size_t axis : varying_axes(input)) {
      element += fmt::format("{2}k{0}_{1} * s{0}_{1}", input, axis, element.empty() ? "" : " + ");
    }
    return element;
  }

  /// The part of this element that the axes with an index of one side have, after the statements of the side.
  std::string grad_element_of(std::size_t input, Dependence side) const {
    std::string element;
    for (const std::size_t axis : varying_axes(input)) {
      if (dependence(function_.inputs()[input].indices[axis]) != side) continue;
      element += fmt::format("{2}k{0}_{1} * s{0}_{1}", input, axis, element.empty() ? "" : " + ");
    }
    return element;
  }

  /// The axes whose index varies in a head and batch entry.
  std::vector<std::size_t> varying_axes(std::size_t input) const {
    std::vector<std::size_t> axes;
    for (std::size_t axis = 0; axis < function_.inputs()[input].indices.size(); ++axis) {
      if (varies(function_.inputs()[input].indices[axis])) axes.push_back(axis);
    }
    return axes;
  }

  /// The only axis whose index is this position.
  std::size_t axis_of(std::size_t input, Index position) const {
    const std::vector<Program>& indices = function_.inputs()[input].indices;
    const auto is_position = [&](const Program& index) { return bare_index(index, function_.inputs()) == position; };
    return static_cast<std::size_t>(std::ranges::find_if(indices, is_position) - indices.begin());
  }

  /// The struct of common/index.cuh that reads the elements.
  std::string_view reader(std::size_t input) const {
    return reader_of(static_cast<NumberType>(types_ >> (4 * function_.inputs()[input].tensor) & 7U));
  }

  /// The type of these numbers.
  std::string_view element_type(std::size_t input) const {
    return offset_type(types_, function_.inputs()[input].tensor);
  }

  /// Whether `first<input>` is the offset of the first element. With one varying axis, the pointer is the same for all
  /// threads, and the offset includes the first element: the address is one product and one sum.
  bool has_first(std::size_t input) const { return element_type(input) == "int" && varying_axes(input).size() == 1; }

  /// The number of this element among the elements that a head and batch entry can have, and the number of these.
  std::string element_number(std::size_t input) const {
    std::string number;
    for (const std::size_t axis : varying_axes(input)) {
      number = number.empty() ? fmt::format("k{}_{}", input, axis)
                              : fmt::format("({2}) * (last{0}_{1} + 1) + k{0}_{1}", input, axis, number);
    }
    return number;
  }
  std::string element_count(std::size_t input) const {
    std::string count = "int64_t{1}";
    for (const std::size_t axis : varying_axes(input)) count += fmt::format(" * (last{}_{} + 1)", input, axis);
    return count;
  }

  /// Statements that set `offset` to the grad_element of the element number `element`.
  std::string offset_of_number(std::size_t input) const {
    std::string text = "    int64_t offset = 0;\n";
    const std::vector<std::size_t> axes = varying_axes(input);
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      const bool is_last = axis + 1 == axes.rend();
      text += is_last ? fmt::format("    offset += element * s{}_{};\n", input, *axis)
                      : fmt::format(
                            "    offset += element % (last{0}_{1} + 1) * s{0}_{1};\n"
                            "    element /= last{0}_{1} + 1;\n",
                            input, *axis);
    }
    return text;
  }

  bool varies(const Input& read) const { return dependence(read) != Dependence::none; }

 private:
  /// The positions in whose section the statements of an input or of an index are.
  template <class Of>
  Dependence dependence(const Of& of) const {
    return checks_ ? Dependence::both : dependence_of(of, function_.inputs());
  }
  bool varies(const Program& program) const { return dependence(program) != Dependence::none; }

  /// Whether the function reads the input outside of indices.
  bool is_operand(std::size_t input) const {
    const auto reads_it = [input](const Step& step) {
      return step.operation == Operation::input && static_cast<std::size_t>(step.number) == input;
    };
    return function_.functions() > 1 || std::ranges::any_of(function_.value_and_derivative().steps, reads_it);
  }

  bool is_in_index(std::size_t input) const {
    for (const Input& read : function_.inputs()) {
      for (const Program& program : read.indices) {
        for (const Step& step : program.steps) {
          if (step.operation == Operation::input && static_cast<std::size_t>(step.number) == input) return true;
        }
      }
    }
    return false;
  }

  /// A statement that returns if an index is outside of its axis. An axis of size 1 is broadcast.
  std::string check_of(std::size_t n, std::size_t axis, const std::string& index);
  /// A position as a number of the function.
  void print_position(std::size_t n);
  void print_read(std::size_t n);
  void print_inputs();
  void print_lookup(std::size_t n, std::size_t axis, std::size_t number);

  const Function& function_;
  unsigned types_;
  unsigned wanted_;
  bool is_mask_;
  bool checks_;
  std::string_view tensors_;  // the member of Params
  std::optional<std::size_t> tile_read_;
  std::vector<Lookup> lookups_;
  bool has_difference_ = false;
  std::size_t reads_ = 0;
  InputsText text_;
};

}  // namespace gdpa::activation
