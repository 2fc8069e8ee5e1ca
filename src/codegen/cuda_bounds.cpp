// See cuda_bounds.h. The members have the names of the members of the struct Condition (cuda_inputs.cpp).
#include "codegen/cuda_bounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/cuda_inputs.h"
#include "expression/tree.h"

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
      case Index::first_row_q:
        return "number(static_cast<int>(pair.first_row_q))";
      case Index::first_row_k:
        return "number(static_cast<int>(pair.first_row_k))";
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

/// The statements that enclose the elements of read n in `b<n>`: the hull of these elements if they are few. `by_warp`:
/// the index depends on the query alone, and the lanes of a warp divide the elements among them.
std::string enclosed_read(const Function& mask, std::size_t n, unsigned tensor_types, bool by_warp) {
  const std::vector<Input>& inputs = mask.inputs();
  const Input& read = inputs[n];
  const std::string_view reader = reader_of(static_cast<NumberType>(tensor_types >> (4 * read.tensor) & 7U));
  std::string statements, count = "int64_t{1}", elements, offset;
  int axes = 0;
  for (std::size_t axis = 0; axis < read.indices.size(); ++axis) {
    if (!varies(read.indices[axis], inputs)) continue;
    ++axes;
    const std::string of_axis = fmt::format("{}_{}", n, axis);
    const BoundsPrinter index(mask, read.indices[axis], fmt::format("x{}_", of_axis));
    statements += index.statements();
    statements += fmt::format("    const Indices of{0} = indices({1}, last{0});\n", of_axis, index.result());
    count += fmt::format(" * of{}.count()", of_axis);
    // The number of an element counts the indices of the last axis first. The first axis has what is left.
    elements = axes == 1 ? fmt::format("        const int k{0} = of{0}.first + rest;\n", of_axis)
                         : fmt::format(
                               "        const int k{0} = of{0}.first + rest % of{0}.count();\n"
                               "        rest /= of{0}.count();\n",
                               of_axis) +
                               elements;
    offset += fmt::format("{1}k{0} * stride{0}", of_axis, offset.empty() ? "" : " + ");
  }
  // See print_read() in cuda_inputs.cpp: with one axis, the offset includes the first element.
  if (axes == 1 && offset_type(tensor_types, read.tensor) == "int") offset = fmt::format("first{} + {}", n, offset);
  return fmt::format(
      "{0}"
      "    Hull<decltype({2}::at(nullptr))> hull{1};\n"
      "    const int64_t count{1} = {3};\n"
      "    if (count{1} <= {4}) {{\n"
      "      for (int element = {5}; element < count{1}; element += {6}) {{\n"
      "        int rest = element;\n"
      "{7}"
      "        hull{1}.add({2}::at(gdpa::index::element(p{1}, {8})));\n"
      "      }}\n"
      "{9}"
      "    }}\n"
      "    {10}b{1} = hull{1}.is_empty ? unknown(hull{1}.bounds().type) : hull{1}.bounds();\n",
      statements, n, reader, count, by_warp ? "most_elements_of_warp" : "most_elements",
      by_warp ? "static_cast<int>(threadIdx.x % 32)" : "0", by_warp ? 32 : 1, elements, offset,
      by_warp ? fmt::format("      hull{}.join_warp();\n", n) : "", by_warp ? "of." : "const Bounds ");
}

}  // namespace

std::string condition_bounds_source(const Function& mask, unsigned tensor_types) {
  const std::vector<Input>& inputs = mask.inputs();
  std::string members, of_queries, copies, of_tile;
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    const Dependence on = dependence_of(inputs[n], inputs);
    if (inputs[n].kind != Input::Kind::read || on == Dependence::none) continue;
    if (on == Dependence::query) {
      members += fmt::format("    gdpa::bounds::Bounds b{};\n", n);
      of_queries += enclosed_read(mask, n, tensor_types, true);
      copies += fmt::format("    const Bounds b{0} = of.b{0};\n", n);
    } else {
      of_tile += enclosed_read(mask, n, tensor_types, false);
    }
  }
  const BoundsPrinter condition(mask, mask.value(), "c");
  constexpr std::string_view bounds = "[[maybe_unused]] const gdpa::bounds::Bounds&";
  return fmt::format(
      "struct ConditionBounds : Condition {{\n"
      "  using Condition::Condition;\n\n"
      "  struct OfQueries {{\n{0}  }};\n"
      "  __device__ OfQueries of_queries({1} query) const {{\n"
      "    using namespace gdpa::bounds;\n"
      "    OfQueries of{{}};\n"
      "{2}"
      "    return of;\n"
      "  }}\n\n"
      "  __device__ gdpa::bounds::Bounds enclose({1} query, {1} key, [[maybe_unused]] const OfQueries& of) const {{\n"
      "    using namespace gdpa::bounds;\n"
      "{3}{4}{5}"
      "    return {6};\n"
      "  }}\n"
      "}};\n\n",
      members, bounds, of_queries, copies, of_tile, condition.statements(), condition.result());
}

}  // namespace gdpa::activation
