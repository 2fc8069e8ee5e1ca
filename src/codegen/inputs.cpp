// See inputs.h.
#include "codegen/inputs.h"

#include <fmt/format.h>

#include <optional>
#include <vector>

#include "codegen/inputs_printer.h"

namespace gdpa::activation {

bool has_inputs_at(const Function& function) { return !function.facts().reads_only_numbers; }

std::string inputs_header(const Function& function) {
  return fmt::format("#include \"common/no_inputs.cuh\"\n{}",
                     function.inputs().empty() ? "" : "#include \"common/index.cuh\"\n");
}

namespace {

/// The member at() of Inputs, which computes the values at a position.
std::string values_at(std::string_view arguments, const std::string& statements, const std::string& values) {
  return member(fmt::format("Values at(int query, int key, const OfQuery& of_query, const OfKey& of_key, "
                            "const OfDifference& of_difference{}) const",
                            arguments),
                fmt::format("{}    return {{{}}};\n", statements, values));
}

/// The members of Inputs for StagedTile.
std::string tile_source(const InputsPrinter& printer, std::size_t read, const std::string& copies) {
  const std::string last_query = fmt::format("last{}_{}", read, printer.axis_of(read, Index::query));
  const std::string last_key = fmt::format("last{}_{}", read, printer.axis_of(read, Index::key));
  const std::string stride = fmt::format("stride{}_{}", read, printer.axis_of(read, Index::query));
  return fmt::format("\n  using TileReader = {};\n", printer.reader(read)) +
         member("const TileReader::Storage* tile_row(int query) const",
                fmt::format("    return gdpa::index::element(p{}, gdpa::index::nearest_from_0(query, {}) * {});\n",
                            read, last_query, stride)) +
         getter("auto tile_row_bytes() const", stride) + getter("int last_tile_query() const", last_query) +
         getter("int last_tile_key() const", last_key) + "\n" +
         values_at(", float of_tile",
                   fmt::format("{}    const float r{} = of_tile;\n{}", copies, read, printer.text().of_both),
                   printer.text().values);
}

/// The members of Inputs for StagedLookups and LaneLookups.
std::string lookups_source(const Function& function, unsigned tensor_types, const std::vector<Lookup>& lookups,
                           const std::string& copies) {
  const std::vector<Input>& inputs = function.inputs();
  const InputsPrinter printer(function, tensor_types, {.lookups = lookups});
  std::string sizes, elements, entries, indices;
  for (std::size_t number = 0; number < lookups.size(); ++number) {
    const auto [n, axis] = lookups[number];
    const Program& program = inputs[n].indices[axis];
    IndexPrinter index(program, inputs, "x");
    const LookupEntry entry = lookup_entry(program, index);
    const std::string condition = fmt::format("    if (lookup == {}) {{\n", number);
    sizes +=
        condition + fmt::format("      return {};\n    }}\n", entry.count > 0 ? fmt::format("{}", entry.count)
                                                                              : fmt::format("last{}_{} + 1", n, axis));
    indices += condition + lookup_index_source(function, lookups[number]) + "    }\n";
    elements +=
        condition + fmt::format("      return {1}::at(gdpa::index::element(p{0}, {2}index * stride{0}_{3}));\n    }}\n",
                                n, printer.reader(n), printer.has_first(n) ? fmt::format("first{} + ", n) : "", axis);
    const std::optional<std::uint16_t> difference = difference_step(program, inputs);
    if (!difference) continue;
    index.name(*difference, "apart");
    entries +=
        condition + index.statements_of(entry.step) +
        fmt::format("      return {};\n    }}\n", entry_source(lookups[number], entry, index.operand(entry.step)));
  }
  const std::optional<LookupDifference> difference = lookup_difference(function, lookups, tensor_types);
  const LookupDifference form = difference.value_or(LookupDifference{});
  std::string of_difference;
  if (difference) {
    of_difference = getter("static auto number_of(const OfQuery& of)", fmt::format("of.r{}", difference->of_query)) +
                    getter("static auto number_of(const OfKey& of)", fmt::format("of.r{}", difference->of_key)) +
                    "  template <class Number>\n" +
                    member("int lookup_entry(int lookup, Number apart) const", entries + "    return 0;\n");
  }
  return fmt::format(
             "\n  static constexpr int lookups = {};\n"
             "  static constexpr bool has_difference = {}, is_query_first = {}, is_absolute = {}, are_integers = {}, "
             "fits_32_bits = {}, is_monotone = {};\n",
             lookups.size(), difference.has_value(), form.is_query_first, form.is_absolute, form.is_of_integers,
             form.fits_32_bits, form.is_monotone) +
         member("int lookup_entries(int lookup) const", sizes + "    return 0;\n") +
         member("int lookup_index(int lookup, int entry) const", indices + "    return 0;\n") +
         member("float lookup_element(int lookup, int index) const", elements + "    return 0.0f;\n") + of_difference +
         "  template <class Number, class Lookups>\n" +
         values_at(", Number apart, const Lookups& lookups", copies + printer.text().of_both, printer.text().values);
}

}  // namespace

std::string inputs_source(const Function& function, unsigned tensor_types) {
  if (!has_inputs_at(function)) return "using InputValues = gdpa::NoValues;\n\n";
  const InputsPrinter printer(function, tensor_types);
  const InputsText& text = printer.text();
  const std::optional<std::size_t> tile = tile_read(function, tensor_types);
  const std::vector<Lookup> lookups = lookups_of(function, tensor_types);
  const std::string copies =
      text.of_query.copies("of_query") + text.of_key.copies("of_key") + text.of_difference.copies("of_difference");
  const auto of_section = [](std::string_view signature, const Section& section) {
    return member(signature, fmt::format("{}    return {{{}}};\n", section.statements, section.names())) + "\n";
  };
  return fmt::format(
             "struct InputValues {{\n{}}};\n\n"
             "struct Inputs {{\n"
             "  using Values = ::InputValues;\n"
             "  struct OfQuery {{\n{}  }};\n"
             "  struct OfKey {{\n{}  }};\n"
             "  struct OfDifference {{\n{}  }};\n"
             "  static constexpr bool leaves_registers = false;\n"
             "  static constexpr bool reads_keys = {}, reads_differences = {};\n"
             "  gdpa::SequencePair pair;\n"
             "{}\n"
             "  Inputs() = default;\n",
             text.struct_members, text.of_query.members(), text.of_key.members(), text.of_difference.members(),
             function.facts().reads_of_keys > 0, function.facts().reads_of_differences > 0, text.members) +
         constructor_of_pair("Inputs", text.constructor) + of_pair("Inputs") +
         member("void end_group(int group) const", "    if (group % 4 == 3) __syncwarp();\n") + "\n" +
         of_section("OfQuery of_query(int query) const", text.of_query) +
         of_section("OfKey of_key(int key) const", text.of_key) +
         of_section("OfDifference of_difference(int query, int key) const", text.of_difference) +
         values_at("", copies + text.tile_load + text.of_both, text.values) +
         (tile ? tile_source(printer, *tile, copies) : "") +
         (lookups.empty() ? "" : lookups_source(function, tensor_types, lookups, copies)) + "};\n\n";
}

std::string index_check_source(std::string_view name, const Function& function, unsigned tensor_types,
                               Expression expression) {
  const InputsPrinter printer(function, tensor_types, {.expression = expression, .checks = true});
  const InputsText& text = printer.text();
  return fmt::format(
      "// The indices of {}\n"
      "struct {} {{\n"
      "  static constexpr bool exist = {};\n"
      "  gdpa::SequencePair pair;\n"
      "{}\n"
      "  __device__ {}([[maybe_unused]] const gdpa::Params& params, const gdpa::SequencePair& pair_) : pair(pair_) {{\n"
      "{}"
      "  }}\n\n"
      "  __device__ bool are_wrong([[maybe_unused]] int query, [[maybe_unused]] int key, [[maybe_unused]] bool prints) "
      "const {{\n"
      "{}"
      "    return false;\n"
      "  }}\n"
      "}};\n\n",
      function.text(), name, function.facts().reads > 0, text.members, name, text.constructor, text.of_both);
}

}  // namespace gdpa::activation
