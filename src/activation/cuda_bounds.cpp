// See cuda_bounds.h. The members have the names of the members of the struct Condition (cuda_inputs.cpp).
#include "activation/cuda_bounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "activation/cuda_inputs.h"
#include "activation/tree.h"

namespace gdpa::activation {
namespace {

bool varies(const Program& index, const std::vector<Input>& inputs) {
  return dependence_of(index, inputs) != Dependence::none;
}

/// Prints a program in the arithmetic of common/bounds.cuh. The variables begin with `prefix`.
class BoundsPrinter {
 public:
  BoundsPrinter(const Function& function, const Program& program, std::string prefix)
      : inputs_(function.inputs()), program_(program), prefix_(std::move(prefix)) {}

  std::string statements() const {
    std::string text;
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      const Step& step = program_.steps[i];
      if (operand_count(step.operation) == 0) continue;
      text += fmt::format("    const auto {}{} = {};\n", prefix_, i, expression(step));
    }
    return text;
  }

  std::string result() const { return operand(program_.results[0]); }

 private:
  std::string operand(std::uint16_t index) const {
    const Step& step = program_.steps[index];
    if (step.operation == Operation::constant) return fmt::format("number({})", index_literal(step.number));
    if (step.operation != Operation::input) return fmt::format("{}{}", prefix_, index);
    const auto input = static_cast<std::size_t>(step.number);
    const Input& of_function = inputs_[input];
    switch (of_function.kind) {
      case Input::Kind::number:
        return fmt::format("number(n{})", input);
      case Input::Kind::index:
        return position(of_function.index);
      case Input::Kind::read:
        return dependence_of(of_function, inputs_) == Dependence::none ? fmt::format("number(r{})", input)
                                                                       : fmt::format("b{}", input);
    }
    return "";
  }

  static std::string position(Index index) {
    switch (index) {
      case Index::batch:
        return "number(static_cast<int>(pair.b))";
      case Index::head:
        return "number(pair.head)";
      case Index::query:
        return "query";
      case Index::key:
        return "key";
      case Index::length_q:
        return "number(pair.length_q)";
      case Index::length_k:
        return "number(pair.length_k)";
    }
    return "";
  }

  /// The name of an operation in common/bounds.cuh; empty if nothing is known of its results.
  static std::string_view name_of(Operation operation) {
    switch (operation) {
      case Operation::add:
        return "add";
      case Operation::subtract:
        return "subtract";
      case Operation::multiply:
        return "multiply";
      case Operation::divide:
        return "divide";
      case Operation::floor_divide:
        return "floor_divide";
      case Operation::negate:
        return "negate";
      case Operation::absolute:
        return "absolute";
      case Operation::sign:
        return "sign";
      case Operation::floor:
        return "floor";
      case Operation::minimum:
        return "minimum";
      case Operation::maximum:
        return "maximum";
      case Operation::less:
        return "less";
      case Operation::less_equal:
        return "less_equal";
      case Operation::equal:
        return "equal";
      case Operation::select:
        return "select";
      default:
        return {};
    }
  }

  std::string expression(const Step& step) const {
    const std::string_view name = name_of(step.operation);
    if (name.empty()) return "unknown(Type::float32)";
    const int operands = operand_count(step.operation);
    std::string text = fmt::format("{}({}", name, operand(step.a));
    if (operands > 1) text += ", " + operand(step.b);
    if (operands > 2) text += ", " + operand(step.c);
    return text + ")";
  }

  const std::vector<Input>& inputs_;
  const Program& program_;
  std::string prefix_;
};

std::string_view type_of(NumberType type) {
  switch (type) {
    case NumberType::int32:
      return "Type::int32";
    case NumberType::int64:
      return "Type::int64";
    default:
      return "Type::float32";
  }
}

/// Statements that enclose the elements that read n can have in `b<n>`: the hull of these elements if they are few.
std::string enclosed_read(const Function& mask, std::size_t n, unsigned tensor_types) {
  const std::vector<Input>& inputs = mask.inputs();
  const Input& read = inputs[n];
  const auto type = static_cast<NumberType>(tensor_types >> (4 * read.tensor) & 7U);
  std::string statements, count = "int64_t{1}", loops, offset, indent = "      ";
  int axes = 0;
  for (std::size_t axis = 0; axis < read.indices.size(); ++axis) {
    if (!varies(read.indices[axis], inputs)) continue;
    ++axes;
    const std::string of_axis = fmt::format("{}_{}", n, axis);
    const BoundsPrinter index(mask, read.indices[axis], fmt::format("x{}_", of_axis));
    statements += index.statements();
    statements += fmt::format("    const Indices of{0} = indices({1}, last{0});\n", of_axis, index.result());
    count += fmt::format(" * of{}.count()", of_axis);
    loops += fmt::format("{1}for (int k{0} = of{0}.first; k{0} <= of{0}.last; ++k{0})\n", of_axis, indent);
    indent += "  ";
    offset += fmt::format("{1}k{0} * stride{0}", of_axis, offset.empty() ? "" : " + ");
  }
  // See print_read() in cuda_inputs.cpp: with one axis, the offset includes the first element.
  if (axes == 1 && offset_type(tensor_types, read.tensor) == "int") offset = fmt::format("first{} + {}", n, offset);
  return fmt::format(
      "{0}"
      "    Bounds b{1} = unknown({2});\n"
      "    if ({3} <= most_elements) {{\n"
      "      bool is_first = true;\n"
      "{4}"
      "{5}{{\n"
      "{5}  const Bounds element = number({6}::at(gdpa::index::element(p{1}, {7})));\n"
      "{5}  b{1} = is_first ? element : hull(b{1}, element);\n"
      "{5}  is_first = false;\n"
      "{5}}}\n"
      "    }}\n",
      statements, n, type_of(type), count, loops, indent, reader_of(type), offset);
}

}  // namespace

std::string condition_bounds_source(const Function& mask, unsigned tensor_types) {
  const std::vector<Input>& inputs = mask.inputs();
  std::string reads;
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    const bool is_read = inputs[n].kind == Input::Kind::read;
    if (is_read && dependence_of(inputs[n], inputs) != Dependence::none) reads += enclosed_read(mask, n, tensor_types);
  }
  const BoundsPrinter condition(mask, mask.value(), "c");
  return fmt::format(
      "struct ConditionBounds : Condition {{\n"
      "  using Condition::Condition;\n\n"
      "  __device__ gdpa::bounds::Bounds enclose([[maybe_unused]] const gdpa::bounds::Bounds& query, "
      "[[maybe_unused]] const gdpa::bounds::Bounds& key) const {{\n"
      "    using namespace gdpa::bounds;\n"
      "{}{}"
      "    return {};\n"
      "  }}\n"
      "}};\n\n",
      reads, condition.statements(), condition.result());
}

}  // namespace gdpa::activation
