// Prints the inputs of an expression as CUDA C++. The structs of inputs.h, gradients.h and condition.h are made of this
// text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/inputs.h"
#include "codegen/program_printer.h"
#include "expression/lookup.h"

namespace gdpa::activation {

/// The statements of the inputs that depend on one position, and the variables that other statements read.
class Section {
 public:
  std::string statements;

  /// Adds a variable that the statements declare.
  void add(std::string_view type, const std::string& name);

  const std::string& members() const { return members_; }  ///< the declarations of the variables in a struct
  const std::string& names() const { return names_; }      ///< the variables, as initializers of the struct

  /// The statements that declare the variables from a struct with this name.
  std::string copies(std::string_view from) const;

 private:
  std::string members_;
  std::string names_;
  std::vector<std::string> variables_;
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
  std::string values;  ///< the initializers of the struct InputValues

  /// All statements for one position, in an order in which each variable is declared before it is read.
  std::string at() const {
    return of_query.statements + of_key.statements + of_difference.statements + tile_load + of_both;
  }

  /// The section of the positions that something depends on; null for both.
  Section* section_of(Dependence on) {
    if (on == Dependence::query) return &of_query;
    if (on == Dependence::key) return &of_key;
    return on == Dependence::difference ? &of_difference : nullptr;
  }
  std::string& statements_of(Dependence on) {
    Section* const section = section_of(on);
    return section == nullptr ? of_both : section->statements;
  }
};

/// What is printed in addition to the inputs themselves.
struct InputsForm {
  unsigned wanted = 0;  ///< bit n: the offsets in the gradient of tensor n (grad_element)
  Expression expression = Expression::function;
  bool checks = false;  ///< all statements are in of_both, and a statement after each index returns if it is wrong
  /// The elements of these lookups are staged. The statements of both positions read them from `lookups`, and the
  /// difference of lookup_difference(), if there is one, is `apart`.
  std::vector<Lookup> lookups = {};
};

/// Prints the inputs of an expression.
class InputsPrinter {
 public:
  InputsPrinter(const Function& function, unsigned tensor_types, const InputsForm& form = {});

  const InputsText& text() const { return text_; }

  /// The element of a read in the sums of the gradient, counted from the first one of the head and batch entry, after
  /// the statements of `at`. With a `side`, the part that the axes with an index of this side have.
  std::string grad_element(std::size_t input, std::optional<Dependence> side = {}) const;

  /// The axes whose index varies in a head and batch entry.
  std::vector<std::size_t> varying_axes(std::size_t input) const;

  /// The only axis whose index is this position.
  std::size_t axis_of(std::size_t input, Index position) const;

  /// The struct of common/index.cuh that reads the elements.
  std::string_view reader(std::size_t input) const;

  /// The type of offsets: they have 64 bits only where the tensor needs them.
  std::string_view offset_type(std::size_t input) const;

  /// Whether `first<input>` is the offset of the first element. With one varying axis, the pointer is the same for all
  /// threads, and the offset includes the first element: the address is one product and one sum.
  bool has_first(std::size_t input) const { return offset_type(input) == "int" && varying_axes(input).size() == 1; }

  /// The number of this element among the elements that a head and batch entry can have, and the number of these.
  std::string element_number(std::size_t input) const;
  std::string element_count(std::size_t input) const;

  /// Statements that set `offset` to the grad_element of the element number `element`.
  std::string offset_of_number(std::size_t input) const;

  /// The positions in whose section the statements of an input or of an index are.
  template <class Of>
  Dependence dependence(const Of& of) const {
    return form_.checks ? Dependence::both : dependence_of(of, function_.inputs());
  }
  template <class Of>
  bool varies(const Of& of) const {
    return dependence(of) != Dependence::none;
  }

 private:
  const Input& input(std::size_t n) const { return function_.inputs()[n]; }
  bool is_mask() const { return form_.expression == Expression::mask; }
  bool is_operand(std::size_t input) const;
  bool is_in_index(std::size_t input) const;
  std::string check_of(std::size_t n, std::size_t axis, const std::string& index);
  void print_number(std::size_t n);
  void print_position(std::size_t n);
  void print_read(std::size_t n);
  void print_fixed_axis(std::size_t n, std::size_t axis);
  std::string print_axis(std::size_t n, std::size_t axis);
  void print_lookup(std::size_t n, std::size_t axis, std::size_t number);

  const Function& function_;
  unsigned types_;
  InputsForm form_;
  std::string_view tensors_;  // the member of Params
  std::optional<std::size_t> tile_read_;
  bool has_difference_;
  InputsText text_;
};

/// The index of a lookup as two parts: the first one is computed for each score, and the second one when the elements
/// are copied.
struct LookupEntry {
  std::uint16_t step;  ///< the result of the first part. The clamps after this step are the second part
  int count = 0;       ///< the first part is from 0 to `count` - 1; 0 if that is not known, so that it must be clamped
};
LookupEntry lookup_entry(const Program& program, const IndexPrinter& printer);

/// Returns the expression of the entry of lookup `lookup` whose first part has the value `of_score`.
std::string entry_source(const Lookup& lookup, const LookupEntry& entry, const std::string& of_score);

/// Returns the body of a function: it returns the index of the element that the entry `entry` of a lookup has.
std::string lookup_index_source(const Function& function, const Lookup& lookup);

/// Returns the includes of inputs_source().
std::string inputs_header(const Function& function);

/// Returns `using InputValues = gdpa::NoValues;`, or the structs InputValues and Inputs. `tensor_types` is
/// Problem::tensor_types.
std::string inputs_source(const Function& function, unsigned tensor_types);

}  // namespace gdpa::activation
