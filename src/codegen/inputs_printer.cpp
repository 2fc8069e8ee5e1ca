// See inputs_printer.h.
#include "codegen/inputs_printer.h"

#include <fmt/format.h>

#include <algorithm>

#include "definition/tensor_types.h"
#include "expression/tree.h"

namespace gdpa::activation {

namespace {

bool reads_input(const Program& program, std::size_t input) {
  return std::ranges::count(inputs_of(program), input) > 0;
}

/// "a + b"
void add_term(std::string& sum, const std::string& term) { sum += (sum.empty() ? "" : " + ") + term; }

}  // namespace

// --- sections ----------------------------------------------------------------------------------------------------

void Section::add(std::string_view type, const std::string& name) {
  members_ += fmt::format("    {} {};\n", type, name);
  names_ += (names_.empty() ? "" : ", ") + name;
  variables_.push_back(name);
}

std::string Section::copies(std::string_view from) const {
  std::string text;
  for (const std::string& name : variables_) text += fmt::format("    const auto {0} = {1}.{0};\n", name, from);
  return text;
}

// --- elements ------------------------------------------------------------------------------------------------------

std::string InputsPrinter::grad_element(std::size_t n, std::optional<Dependence> side) const {
  std::string element;
  for (const std::size_t axis : varying_axes(n)) {
    if (side && dependence(input(n).indices[axis]) != *side) continue;
    add_term(element, fmt::format("k{0}_{1} * s{0}_{1}", n, axis));
  }
  return element;
}

std::vector<std::size_t> InputsPrinter::varying_axes(std::size_t n) const {
  std::vector<std::size_t> axes;
  for (std::size_t axis = 0; axis < input(n).indices.size(); ++axis) {
    if (varies(input(n).indices[axis])) axes.push_back(axis);
  }
  return axes;
}

std::size_t InputsPrinter::axis_of(std::size_t n, Index position) const {
  const std::vector<Program>& indices = input(n).indices;
  const auto is_position = [&](const Program& index) { return bare_index(index, function_.inputs()) == position; };
  return static_cast<std::size_t>(std::ranges::find_if(indices, is_position) - indices.begin());
}

std::string_view InputsPrinter::reader(std::size_t n) const {
  // The readers of NumberType, which has no float64 on a GPU.
  constexpr std::string_view readers[] = {"gdpa::ReadFloat32", "gdpa::ReadFloat32", "gdpa::ReadBFloat16",
                                          "gdpa::ReadFloat16", "gdpa::ReadInt32",   "gdpa::ReadInt64"};
  return readers[static_cast<std::size_t>(number_type(types_, input(n).tensor))];
}

std::string_view InputsPrinter::offset_type(std::size_t n) const {
  return has_wide_offsets(types_, input(n).tensor) ? "int64_t" : "int";
}

std::string InputsPrinter::element_number(std::size_t n) const {
  std::string number;
  for (const std::size_t axis : varying_axes(n)) {
    number = number.empty() ? fmt::format("k{}_{}", n, axis)
                            : fmt::format("({2}) * (last{0}_{1} + 1) + k{0}_{1}", n, axis, number);
  }
  return number;
}

std::string InputsPrinter::element_count(std::size_t n) const {
  std::string count = "int64_t{1}";
  for (const std::size_t axis : varying_axes(n)) count += fmt::format(" * (last{}_{} + 1)", n, axis);
  return count;
}

std::string InputsPrinter::offset_of_number(std::size_t n) const {
  std::string text = "    int64_t offset = 0;\n";
  const std::vector<std::size_t> axes = varying_axes(n);
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    const bool is_last = axis + 1 == axes.rend();
    text += is_last ? fmt::format("    offset += element * s{}_{};\n", n, *axis)
                    : fmt::format(
                          "    offset += element % (last{0}_{1} + 1) * s{0}_{1};\n"
                          "    element /= last{0}_{1} + 1;\n",
                          n, *axis);
  }
  return text;
}

// --- statements ----------------------------------------------------------------------------------------------------

InputsPrinter::InputsPrinter(const Function& function, unsigned tensor_types, const InputsForm& form)
    : function_(function),
      types_(tensor_types),
      form_(form),
      tensors_(is_mask() ? "mask_parameters" : "parameters"),
      has_difference_(lookup_difference(function, form.lookups, tensor_types).has_value()) {
  if (!is_mask() && !form.checks && form.lookups.empty()) tile_read_ = tile_read(function, tensor_types);
  for (std::size_t n = 0; n < function.inputs().size(); ++n) {
    switch (input(n).kind) {
      case Input::Kind::number:
        if (is_mask() || is_in_index(n)) print_number(n);
        continue;
      case Input::Kind::read:
        print_read(n);
        break;
      case Input::Kind::index:
        if (is_operand(n) && !form.checks) print_position(n);
        break;
    }
    if (form.checks) continue;
    text_.struct_members += fmt::format("  float v{};\n", n);
    const char name = input(n).kind == Input::Kind::read ? 'r' : 'i';
    const bool is_used = input(n).kind == Input::Kind::read || is_operand(n);
    text_.values += text_.values.empty() ? "" : ", ";
    text_.values += is_used ? fmt::format("static_cast<float>({}{})", name, n) : "0.0f";
  }
}

/// Whether the expression reads the input outside of indices.
bool InputsPrinter::is_operand(std::size_t n) const {
  return is_mask() || function_.functions() > 1 || reads_input(function_.value_and_derivative(), n);
}

bool InputsPrinter::is_in_index(std::size_t n) const {
  return std::ranges::any_of(function_.inputs(), [n](const Input& read) {
    return std::ranges::any_of(read.indices, [n](const Program& index) { return reads_input(index, n); });
  });
}

/// A statement that returns if an index is outside of its axis. An axis of size 1 is broadcast.
std::string InputsPrinter::check_of(std::size_t n, std::size_t axis, const std::string& index) {
  const std::size_t tensor = input(n).tensor;
  text_.members += fmt::format("  int64_t first{0}_{1}, size{0}_{1};\n", n, axis);
  text_.constructor += fmt::format(
      "    first{0}_{1} = a{0}_{1}.first;\n"
      "    size{0}_{1} = params.{2}[{3}].sizes[{1}];\n",
      n, axis, tensors_, tensor);
  return fmt::format(
      "    if (gdpa::index::is_outside({2}, first{0}_{1}, size{0}_{1})) {{\n"
      "      if (prints) gdpa::index::print({2}, first{0}_{1}, size{0}_{1}, {1}, \"{3}\", pair, query, key);\n"
      "      return true;\n"
      "    }}\n",
      n, axis, index, function_.parameters()[tensor]);
}

/// A number of the head that an index reads.
void InputsPrinter::print_number(std::size_t n) {
  text_.members += fmt::format("  float n{};\n", n);
  text_.constructor +=
      fmt::format("    n{} = gdpa::number_of_head(params.{}[{}], pair.head);\n", n, tensors_, input(n).tensor);
}

/// A position as a number of the function.
void InputsPrinter::print_position(std::size_t n) {
  const Dependence on = dependence(input(n));
  const std::string name = fmt::format("i{}", n);
  text_.statements_of(on) +=
      fmt::format("    const float {} = static_cast<float>({});\n", name, position_of(input(n).index));
  if (Section* const section = text_.section_of(on)) section->add("float", name);
}

void InputsPrinter::print_read(std::size_t n) {
  const Input& read = input(n);
  const std::string_view reader = this->reader(n);
  const bool has_first = this->has_first(n);
  text_.members += fmt::format("  const {}::Storage* p{};\n", reader, n);
  text_.constructor += fmt::format("    int64_t f{} = 0;\n", n);
  if ((form_.wanted >> read.tensor & 1U) != 0) text_.constructor += fmt::format("    int64_t g{} = 0;\n", n);
  std::string offset;  // of the varying axes, in bytes
  bool is_lookup = false;
  for (std::size_t axis = 0; axis < read.indices.size(); ++axis) {
    if (!varies(read.indices[axis])) {
      print_fixed_axis(n, axis);
      continue;
    }
    const std::string of_axis = print_axis(n, axis);
    is_lookup = of_axis.empty();
    if (!is_lookup) add_term(offset, of_axis);
  }
  text_.constructor += fmt::format("    p{0} = static_cast<const {1}::Storage*>(params.{2}[{3}].data){4};\n", n, reader,
                                   tensors_, read.tensor, has_first ? "" : fmt::format(" + f{}", n));
  if (has_first) {
    text_.members += fmt::format("  int first{};\n", n);
    text_.constructor +=
        fmt::format("    first{0} = static_cast<int>(f{0} * int64_t{{sizeof({1}::Storage)}});\n", n, reader);
  }
  if (is_lookup) return;
  const Dependence on = dependence(read);
  if (on == Dependence::none) {
    text_.members += fmt::format("  decltype({}::at(nullptr)) r{};\n", reader, n);
    text_.constructor += fmt::format("    r{0} = {1}::at(p{0});\n", n, reader);
    return;
  }
  (n == tile_read_ ? text_.tile_load : text_.statements_of(on)) +=
      fmt::format("    const auto r{0} = {1}::at(gdpa::index::element(p{0}, {2}));\n", n, reader, offset);
  if (Section* const section = text_.section_of(on)) {
    section->add(fmt::format("decltype({}::at(nullptr))", reader), fmt::format("r{}", n));
  }
}

/// An axis whose index is the same for all scores of a head and batch entry.
void InputsPrinter::print_fixed_axis(std::size_t n, std::size_t axis) {
  const std::size_t tensor = input(n).tensor;
  const IndexPrinter index(input(n).indices[axis], function_.inputs(), fmt::format("x{}_{}_", n, axis));
  const auto add_offset = [&](char sum, std::string_view strides) {
    text_.constructor +=
        fmt::format("    {0}{1} += gdpa::index::fixed_offset(params.{2}[{3}], params.{4}[{3}], {5}, {6});\n", sum, n,
                    tensors_, tensor, strides, axis, index.result());
  };
  text_.constructor += index.statements();
  add_offset('f', tensors_);
  if ((form_.wanted >> tensor & 1U) != 0) add_offset('g', "grad_parameters");
}

/// An axis whose index varies. Returns its part of the offset of the element in bytes; nothing for the axis of a
/// lookup, whose element is read from shared memory.
std::string InputsPrinter::print_axis(std::size_t n, std::size_t axis) {
  const Input& read = input(n);
  const Program& program = read.indices[axis];
  const std::string tensor = fmt::format("params.{}[{}]", tensors_, read.tensor);
  const std::string_view integer = offset_type(n);
  const std::optional<Index> position = bare_index(program, function_.inputs());
  std::string of_axis = fmt::format("gdpa::index::axis_of({}, {})", tensor, axis);
  if (is_row_axis(read, axis)) {
    of_axis = fmt::format("gdpa::index::row_axis_of<{0}>({1}, pair.first_row_{2}, pair.length_{2}, {3})", integer,
                          tensor, position == Index::query ? 'q' : 'k', axis);
  }
  text_.members += fmt::format("  int last{0}_{1};\n  {2} stride{0}_{1};\n", n, axis, integer);
  text_.constructor += fmt::format(
      "    const gdpa::index::Axis a{0}_{1} = {2};\n"
      "    last{0}_{1} = a{0}_{1}.last;\n"
      "    stride{0}_{1} = static_cast<{3}>({4}.strides[{1}] * int64_t{{sizeof({5}::Storage)}});\n"
      "    f{0} += a{0}_{1}.first * {4}.strides[{1}];\n",
      n, axis, of_axis, integer, tensor, reader(n));
  if ((form_.wanted >> read.tensor & 1U) != 0) {
    text_.members += fmt::format("  {} s{}_{};\n", integer, n, axis);
    text_.constructor += fmt::format(
        "    s{0}_{1} = static_cast<{2}>(params.grad_parameters[{3}].strides[{1}]);\n"
        "    g{0} += a{0}_{1}.first * s{0}_{1};\n",
        n, axis, integer, read.tensor);
  }
  const auto lookup = std::ranges::find(form_.lookups, n, &Lookup::read);
  if (lookup != form_.lookups.end()) {
    print_lookup(n, axis, static_cast<std::size_t>(lookup - form_.lookups.begin()));
    return {};
  }
  const IndexPrinter index(program, function_.inputs(), fmt::format("x{}_{}_", n, axis));
  const Dependence on = dependence(program);
  std::string& statements = text_.statements_of(on);
  statements += index.statements();
  if (form_.checks) statements += check_of(n, axis, index.result());
  const bool is_non_negative = position.has_value() || index.is_non_negative();
  statements += fmt::format("    const int k{0}_{1} = gdpa::index::{2}({3}, last{0}_{1});\n", n, axis,
                            is_non_negative ? "nearest_from_0" : "nearest", index.result());
  const std::string bytes =
      fmt::format("{2}k{0}_{1} * stride{0}_{1}", n, axis, has_first(n) ? fmt::format("first{} + ", n) : "");
  // Only a read of both positions uses the offset of an axis in another section.
  Section* const section = dependence(read) == Dependence::both ? text_.section_of(on) : nullptr;
  if (section == nullptr) return bytes;
  const std::string name = fmt::format("o{}_{}", n, axis);
  statements += fmt::format("    const {} {} = {};\n", integer, name, bytes);
  section->add(integer, name);
  return name;
}

/// The statements that read the element of a lookup: an entry of its elements in shared memory.
void InputsPrinter::print_lookup(std::size_t n, std::size_t axis, std::size_t number) {
  const Program& program = input(n).indices[axis];
  IndexPrinter index(program, function_.inputs(), fmt::format("x{}_{}_", n, axis));
  const LookupEntry entry = lookup_entry(program, index);
  if (has_difference_) index.name(difference_step(program, function_.inputs()).value(), "apart");
  text_.of_both += index.statements_of(entry.step);
  text_.of_both += fmt::format("    const float r{0} = lookups.element({1}, {2});\n", n, number,
                               entry_source({n, axis}, entry, index.operand(entry.step)));
}

// --- lookups -------------------------------------------------------------------------------------------------------

LookupEntry lookup_entry(const Program& program, const IndexPrinter& printer) {
  const auto count_of = [&](std::uint16_t step) {
    const Interval<double> range = printer.range_of(step);
    const bool is_inside = range.low >= 0 && range.high < most_lookup_elements;
    return is_inside ? static_cast<int>(range.high) + 1 : 0;
  };
  std::uint16_t step = program.results[0];
  for (;;) {
    const Step& clamp = program.steps[step];
    if (!is_extremum(clamp.operation)) break;
    const bool has_bound_first = program.steps[clamp.a].is_number();
    if (!has_bound_first && !program.steps[clamp.b].is_number()) break;
    const std::uint16_t clamped = has_bound_first ? clamp.b : clamp.a;
    if (count_of(clamped) == 0) break;
    step = clamped;
  }
  return {step, count_of(step)};
}

std::string entry_source(const Lookup& lookup, const LookupEntry& entry, const std::string& of_score) {
  return entry.count > 0 ? fmt::format("gdpa::index::to_int({})", of_score)
                         : fmt::format("gdpa::index::nearest({}, last{}_{})", of_score, lookup.read, lookup.axis);
}

std::string lookup_index_source(const Function& function, const Lookup& lookup) {
  const Program& program = function.inputs()[lookup.read].indices[lookup.axis];
  IndexPrinter index(program, function.inputs(), "x");
  const LookupEntry entry = lookup_entry(program, index);
  if (entry.count == 0) return "      return entry;\n";
  index.name(entry.step, "entry");
  return index.statements_of(program.results[0]) +
         fmt::format("      return gdpa::index::nearest({}, last{}_{});\n", index.result(), lookup.read, lookup.axis);
}

}  // namespace gdpa::activation
