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

/// The members of Inputs for StagedTile.
std::string tile_source(const InputsPrinter& printer, std::size_t read, const std::string& copies) {
  const InputsText& text = printer.text();
  return fmt::format(
      "\n  using TileReader = {0};\n"
      "  __device__ __forceinline__ const TileReader::Storage* tile_row(int query) const {{\n"
      "    return gdpa::index::element(p{1}, gdpa::index::nearest_from_0(query, last{1}_{2}) * stride{1}_{2});\n"
      "  }}\n"
      "  __device__ __forceinline__ auto tile_row_bytes() const {{ return stride{1}_{2}; }}\n"
      "  __device__ __forceinline__ int last_tile_query() const {{ return last{1}_{2}; }}\n"
      "  __device__ __forceinline__ int last_tile_key() const {{ return last{1}_{3}; }}\n\n"
      "  __device__ __forceinline__ Values at(int query, int key, const OfQuery& of_query, const OfKey& of_key, "
      "const OfDifference& of_difference, float of_tile) const {{\n"
      "{4}    const float r{1} = of_tile;\n{5}"
      "    return {{{6}}};\n"
      "  }}\n",
      printer.reader(read), read, printer.axis_of(read, Index::query), printer.axis_of(read, Index::key), copies,
      text.of_both, text.values);
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
    of_difference = fmt::format(
        "  __device__ __forceinline__ static auto number_of(const OfQuery& of) {{ return of.r{}; }}\n"
        "  __device__ __forceinline__ static auto number_of(const OfKey& of) {{ return of.r{}; }}\n"
        "  template <class Number>\n"
        "  __device__ __forceinline__ int lookup_entry(int lookup, Number apart) const {{\n"
        "{}    return 0;\n  }}\n",
        difference->of_query, difference->of_key, entries);
  }
  return fmt::format(
      "\n  static constexpr int lookups = {};\n"
      "  static constexpr bool has_difference = {}, is_query_first = {}, is_absolute = {}, are_integers = {}, "
      "fits_32_bits = {}, is_monotone = {};\n"
      "  __device__ __forceinline__ int lookup_entries(int lookup) const {{\n"
      "{}    return 0;\n  }}\n"
      "  __device__ __forceinline__ int lookup_index(int lookup, int entry) const {{\n"
      "{}    return 0;\n  }}\n"
      "  __device__ __forceinline__ float lookup_element(int lookup, int index) const {{\n"
      "{}    return 0.0f;\n  }}\n"
      "{}"
      "  template <class Number, class Lookups>\n"
      "  __device__ __forceinline__ Values at(int query, int key, const OfQuery& of_query, const OfKey& of_key, "
      "const OfDifference& of_difference, Number apart, const Lookups& lookups) const {{\n"
      "{}{}"
      "    return {{{}}};\n"
      "  }}\n",
      lookups.size(), difference.has_value(), form.is_query_first, form.is_absolute, form.is_of_integers,
      form.fits_32_bits, form.is_monotone, sizes, indices, elements, of_difference, copies, printer.text().of_both,
      printer.text().values);
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
      "  Inputs() = default;\n"
      "  __device__ __forceinline__ Inputs(const gdpa::Params& params, const gdpa::SequencePair& pair_) : pair(pair_) "
      "{{\n"
      "{}"
      "  }}\n\n"
      "  static __device__ __forceinline__ Inputs of(const gdpa::Params& params, const gdpa::SequencePair& pair) {{\n"
      "    return {{params, pair}};\n"
      "  }}\n\n"
      "  __device__ __forceinline__ void end_group(int group) const {{\n"
      "    if (group % 4 == 3) __syncwarp();\n"
      "  }}\n\n"
      "  __device__ __forceinline__ OfQuery of_query(int query) const {{\n"
      "{}"
      "    return {{{}}};\n"
      "  }}\n\n"
      "  __device__ __forceinline__ OfKey of_key(int key) const {{\n"
      "{}"
      "    return {{{}}};\n"
      "  }}\n\n"
      "  __device__ __forceinline__ OfDifference of_difference(int query, int key) const {{\n"
      "{}"
      "    return {{{}}};\n"
      "  }}\n\n"
      "  __device__ __forceinline__ Values at(int query, int key, const OfQuery& of_query, const OfKey& of_key, "
      "const OfDifference& of_difference) const {{\n"
      "{}{}{}"
      "    return {{{}}};\n"
      "  }}\n"
      "{}{}"
      "}};\n\n",
      text.struct_members, text.of_query.members(), text.of_key.members(), text.of_difference.members(),
      function.facts().reads_of_keys > 0, function.facts().reads_of_differences > 0, text.members, text.constructor,
      text.of_query.statements, text.of_query.names(), text.of_key.statements, text.of_key.names(),
      text.of_difference.statements, text.of_difference.names(), copies, text.tile_load, text.of_both, text.values,
      tile ? tile_source(printer, *tile, copies) : "",
      lookups.empty() ? "" : lookups_source(function, tensor_types, lookups, copies));
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
