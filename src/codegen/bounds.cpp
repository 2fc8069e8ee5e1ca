// Prints the struct ConditionBounds. Its members have the names of the members of the struct Condition
// (inputs_printer.cpp).
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/condition.h"
#include "codegen/inputs_printer.h"
#include "codegen/program_printer.h"

namespace gdpa::activation {
namespace {

/// The statements that enclose the elements of read n in `b<n>`: the hull of these elements if they are few. `by_warp`:
/// the index depends on the query alone, and the lanes of a warp divide the elements among them.
std::string enclosed_read(const Function& mask, const InputsPrinter& printer, std::size_t n, bool by_warp) {
  const std::vector<Input>& inputs = mask.inputs();
  const Input& read = inputs[n];
  std::string statements, count = "int64_t{1}", elements, offset;
  for (const std::size_t axis : printer.varying_axes(n)) {
    const std::string of_axis = fmt::format("{}_{}", n, axis);
    const BoundsPrinter index(read.indices[axis], inputs, fmt::format("x{}_", of_axis));
    statements += index.statements();
    statements += fmt::format("    const Indices of{0} = indices({1}, last{0});\n", of_axis, index.result());
    count += fmt::format(" * of{}.count()", of_axis);
    // The number of an element counts the indices of the last axis first. The first axis has what is left.
    elements = elements.empty() ? fmt::format("        const int k{0} = of{0}.first + rest;\n", of_axis)
                                : fmt::format(
                                      "        const int k{0} = of{0}.first + rest % of{0}.count();\n"
                                      "        rest /= of{0}.count();\n",
                                      of_axis) +
                                      elements;
    offset += fmt::format("{1}k{0} * stride{0}", of_axis, offset.empty() ? "" : " + ");
  }
  if (printer.has_first(n)) offset = fmt::format("first{} + {}", n, offset);
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
      statements, n, printer.reader(n), count, by_warp ? "most_elements_of_warp" : "most_elements",
      by_warp ? "static_cast<int>(threadIdx.x % 32)" : "0", by_warp ? 32 : 1, elements, offset,
      by_warp ? fmt::format("      hull{}.join_warp();\n", n) : "", by_warp ? "of." : "const Bounds ");
}

}  // namespace

std::string condition_bounds_source(const Function& mask, unsigned tensor_types) {
  const std::vector<Input>& inputs = mask.inputs();
  const InputsPrinter printer(mask, tensor_types, {.expression = Expression::mask});
  std::string members, of_queries, copies, of_tile;
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    const Dependence on = dependence_of(inputs[n], inputs);
    if (inputs[n].kind != Input::Kind::read || on == Dependence::none) continue;
    if (on == Dependence::query) {
      members += fmt::format("    gdpa::bounds::Bounds b{};\n", n);
      of_queries += enclosed_read(mask, printer, n, true);
      copies += fmt::format("    const Bounds b{0} = of.b{0};\n", n);
    } else {
      of_tile += enclosed_read(mask, printer, n, false);
    }
  }
  const BoundsPrinter condition(mask.value(), inputs, "c");
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
