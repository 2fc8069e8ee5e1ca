// See inputs_printer.h.
#include "codegen/inputs_printer.h"

#include <algorithm>
#include <cmath>

#include "definition/bound_tensor.h"
#include "expression/tree.h"

namespace gdpa::activation {

InputsPrinter::InputsPrinter(const Function& function, unsigned tensor_types, unsigned wanted, Expression expression,
                             bool checks)
    : function_(function),
      types_(tensor_types),
      wanted_(wanted),
      is_mask_(expression == Expression::mask),
      checks_(checks),
      tensors_(is_mask_ ? "mask_parameters" : "parameters") {
  if (!is_mask_ && !checks_) tile_read_ = tile_read(function, tensor_types);
  print_inputs();
}

InputsPrinter::InputsPrinter(const Function& function, unsigned tensor_types, const std::vector<Lookup>& lookups)
    : function_(function),
      types_(tensor_types),
      wanted_(0),
      is_mask_(false),
      checks_(false),
      tensors_("parameters"),
      lookups_(lookups),
      has_difference_(lookup_difference(function, lookups, tensor_types).has_value()) {
  print_inputs();
}

void InputsPrinter::print_inputs() {
  const std::vector<Input>& inputs = function_.inputs();
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    if (inputs[n].kind == Input::Kind::read) print_read(n);
    if (inputs[n].kind == Input::Kind::number && (is_mask_ || is_in_index(n))) {
      text_.members += fmt::format("  float n{};\n", n);
      text_.constructor +=
          fmt::format("    n{} = gdpa::number_of_head(params.{}[{}], pair.head);\n", n, tensors_, inputs[n].tensor);
    }
    if (!is_at_position(inputs[n]) || checks_) continue;
    text_.struct_members += fmt::format("  float v{};\n", n);
    if (inputs[n].kind == Input::Kind::index && !is_mask_ && !is_operand(n)) {  // only in indices
      text_.values += text_.values.empty() ? "0.0f" : ", 0.0f";
      continue;
    }
    if (inputs[n].kind == Input::Kind::index) print_position(n);
    const std::string_view name = inputs[n].kind == Input::Kind::read ? "r" : "i";
    text_.values += fmt::format("{}static_cast<float>({}{})", text_.values.empty() ? "" : ", ", name, n);
  }
}

std::string InputsPrinter::check_of(std::size_t n, std::size_t axis, const std::string& index) {
  const Input& read = function_.inputs()[n];
  text_.members += fmt::format("  int64_t first{0}_{1}, size{0}_{1};\n", n, axis);
  text_.constructor += fmt::format(
      "    first{0}_{1} = a{0}_{1}.first;\n"
      "    size{0}_{1} = params.{2}[{3}].sizes[{1}];\n",
      n, axis, tensors_, read.tensor);
  return fmt::format(
      "    if (gdpa::index::is_outside({2}, first{0}_{1}, size{0}_{1})) {{\n"
      "      if (prints) gdpa::index::print({2}, first{0}_{1}, size{0}_{1}, {1}, \"{3}\", pair, query, key);\n"
      "      return true;\n"
      "    }}\n",
      n, axis, index, function_.parameters()[read.tensor]);
}

void InputsPrinter::print_position(std::size_t n) {
  const Input& input = function_.inputs()[n];
  const Dependence on = dependence(input);
  const std::string name = fmt::format("i{}", n);
  text_.statements_of(on) +=
      fmt::format("    const float {} = static_cast<float>({});\n", name, position_of(input.index));
  if (Section* const section = text_.section_of(on)) section->add("float", name);
}

void InputsPrinter::print_read(std::size_t n) {
  const std::vector<Input>& inputs = function_.inputs();
  const Input& read = inputs[n];
  const std::string tensor = fmt::format("params.{}[{}]", tensors_, read.tensor);
  const std::string gradient = fmt::format("params.grad_parameters[{}]", read.tensor);
  const std::string_view reader = this->reader(n);
  const std::string_view integer = offset_type(types_, read.tensor);
  const bool is_wanted = (wanted_ >> read.tensor & 1U) != 0;
  const Dependence of_read = dependence(read);
  const bool has_first = this->has_first(n);
  std::string offset;  // of the varying axes, in bytes
  text_.members += fmt::format("  const {}::Storage* p{};\n", reader, n);
  text_.constructor += fmt::format("    int64_t f{} = 0;\n", n);
  if (is_wanted) text_.constructor += fmt::format("    int64_t g{} = 0;\n", n);
  for (std::size_t axis = 0; axis < read.indices.size(); ++axis) {
    const IndexPrinter index(function_, read.indices[axis], fmt::format("x{}_{}_", n, axis));
    if (!varies(read.indices[axis])) {
      text_.constructor += index.statements();
      text_.constructor += fmt::format("    f{} += gdpa::index::fixed_offset({}, {}, {}, {});\n", n, tensor, tensor,
                                       axis, index.result());
      if (is_wanted) {
        text_.constructor += fmt::format("    g{} += gdpa::index::fixed_offset({}, {}, {}, {});\n", n, tensor, gradient,
                                         axis, index.result());
      }
      continue;
    }
    text_.members += fmt::format("  int last{0}_{1};\n  {2} stride{0}_{1};\n", n, axis, integer);
    std::string of_axis = fmt::format("gdpa::index::axis_of({}, {})", tensor, axis);
    if (is_row_axis(read, axis)) {
      const char side = bare_index(read.indices[axis], inputs) == Index::query ? 'q' : 'k';
      of_axis = fmt::format("gdpa::index::row_axis_of<{0}>({1}, pair.first_row_{2}, pair.length_{2}, {3})", integer,
                            tensor, side, axis);
    }
    text_.constructor += fmt::format(
        "    const gdpa::index::Axis a{0}_{1} = {2};\n"
        "    last{0}_{1} = a{0}_{1}.last;\n"
        "    stride{0}_{1} = static_cast<{3}>({4}.strides[{1}] * int64_t{{sizeof({5}::Storage)}});\n"
        "    f{0} += a{0}_{1}.first * {4}.strides[{1}];\n",
        n, axis, of_axis, integer, tensor, reader);
    if (is_wanted) {
      text_.members += fmt::format("  {} s{}_{};\n", integer, n, axis);
      text_.constructor += fmt::format(
          "    s{0}_{1} = static_cast<{3}>({2}.strides[{1}]);\n"
          "    g{0} += a{0}_{1}.first * s{0}_{1};\n",
          n, axis, gradient, integer);
    }
    const auto lookup = std::ranges::find(lookups_, n, &Lookup::read);
    if (lookup != lookups_.end()) {
      print_lookup(n, axis, static_cast<std::size_t>(lookup - lookups_.begin()));
      continue;
    }
    const Dependence of_axis_index = dependence(read.indices[axis]);
    std::string& statements = text_.statements_of(of_axis_index);
    statements += index.statements();
    if (checks_) statements += check_of(n, axis, index.result());
    const bool is_non_negative = bare_index(read.indices[axis], inputs).has_value() || index.is_non_negative();
    const std::string nearest = fmt::format("gdpa::index::{}({}, last{}_{})",
                                            is_non_negative ? "nearest_from_0" : "nearest", index.result(), n, axis);
    statements += fmt::format("    const int k{}_{} = {};\n", n, axis, nearest);
    const std::string bytes =
        fmt::format("{2}k{0}_{1} * stride{0}_{1}", n, axis, has_first ? fmt::format("first{} + ", n) : "");
    // Only a read of both positions uses the offset of an axis in another section.
    Section* const section = of_read == Dependence::both ? text_.section_of(of_axis_index) : nullptr;
    if (section != nullptr) {
      statements += fmt::format("    const {} o{}_{} = {};\n", integer, n, axis, bytes);
      section->add(integer, fmt::format("o{}_{}", n, axis));
    }
    offset +=
        fmt::format("{}{}", offset.empty() ? "" : " + ", section != nullptr ? fmt::format("o{}_{}", n, axis) : bytes);
  }
  ++reads_;
  text_.constructor += fmt::format("    p{0} = static_cast<const {1}::Storage*>({2}.data){3};\n", n, reader, tensor,
                                   has_first ? "" : fmt::format(" + f{}", n));
  if (has_first) {
    text_.members += fmt::format("  int first{};\n", n);
    text_.constructor +=
        fmt::format("    first{0} = static_cast<int>(f{0} * int64_t{{sizeof({1}::Storage)}});\n", n, reader);
  }
  if (std::ranges::count(lookups_, n, &Lookup::read) > 0) return;
  if (of_read != Dependence::none) {
    (n == tile_read_ ? text_.tile_load : text_.statements_of(of_read)) +=
        fmt::format("    const auto r{0} = {1}::at(gdpa::index::element(p{0}, {2}));\n", n, reader, offset);
    if (Section* const section = text_.section_of(of_read)) {
      section->add(fmt::format("decltype({}::at(nullptr))", reader), fmt::format("r{}", n));
    }
  } else {
    text_.members += fmt::format("  decltype({}::at(nullptr)) r{};\n", reader, n);
    text_.constructor += fmt::format("    r{0} = {1}::at(p{0});\n", n, reader);
  }
}

/// The statements that read the element of a lookup: an entry of its elements in shared memory.
void InputsPrinter::print_lookup(std::size_t n, std::size_t axis, std::size_t number) {
  const Program& program = function_.inputs()[n].indices[axis];
  IndexPrinter index(function_, program, fmt::format("x{}_{}_", n, axis));
  const LookupEntry entry = lookup_entry(program, index);
  if (has_difference_) index.name(difference_step(program, function_.inputs()).value(), "apart");
  const std::string first = index.operand(entry.step);
  text_.of_both += index.statements_of(entry.step);
  text_.of_both += fmt::format("    const float r{0} = lookups.element({1}, {2});\n", n, number,
                               entry.count > 0 ? fmt::format("gdpa::index::to_int({})", first)
                                               : fmt::format("gdpa::index::nearest({}, last{}_{})", first, n, axis));
}

}  // namespace gdpa::activation
