// See cuda_inputs.h. An index is printed with the types of C++: positions are int, a tensor of integers has its own
// type, and every other number is float. The functions of common/index.cuh keep integers exact.
#include "activation/cuda_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "activation/fast.h"
#include "activation/index_printer.h"
#include "definition/bound_tensor.h"

namespace gdpa::activation {

std::string_view reader_of(NumberType type) {
  switch (type) {
    case NumberType::float32:
    case NumberType::float64:  // not on a GPU
      return "gdpa::ReadFloat32";
    case NumberType::bfloat16:
      return "gdpa::ReadBFloat16";
    case NumberType::float16:
      return "gdpa::ReadFloat16";
    case NumberType::int32:
      return "gdpa::ReadInt32";
    case NumberType::int64:
      return "gdpa::ReadInt64";
  }
  return "";
}

std::string_view offset_type(unsigned tensor_types, std::size_t tensor) {
  return (tensor_types >> (4 * tensor) & 8U) != 0 ? "int64_t" : "int";
}

std::string index_literal(double number) {
  if (number != std::floor(number) || std::fabs(number) >= 0x1p62) return literal(number);
  const auto whole = static_cast<long long>(number);
  const bool is_int = std::fabs(number) < 0x1p31;
  return fmt::format("({}{})", whole, is_int ? "" : "ll");
}

namespace {

bool is_at_position(const Input& input) { return input.kind != Input::Kind::number; }

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
  std::string of_both;      ///< statements; the arguments are `query` and `key`, and the variables of all sections
  std::string struct_members;
  std::string values;  ///< the initializers of the struct Inputs

  /// All statements for one position, in an order in which each variable is declared before it is read.
  std::string at() const { return of_query.statements + of_key.statements + of_difference.statements + of_both; }

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
                bool checks = false)
      : function_(function),
        types_(tensor_types),
        wanted_(wanted),
        is_mask_(expression == Expression::mask),
        checks_(checks),
        tensors_(is_mask_ ? "mask_parameters" : "parameters") {
    const std::vector<Input>& inputs = function.inputs();
    for (std::size_t n = 0; n < inputs.size(); ++n) {
      if (inputs[n].kind == Input::Kind::read) print_read(n);
      if (inputs[n].kind == Input::Kind::number && (is_mask_ || is_in_index(n))) {
        text_.members += fmt::format("  float n{};\n", n);
        text_.constructor +=
            fmt::format("    n{} = gdpa::number_of_head(params.{}[{}], pair.head);\n", n, tensors_, inputs[n].tensor);
      }
      if (!is_at_position(inputs[n]) || checks_) continue;
      text_.struct_members += fmt::format("  float v{};\n", n);
      if (inputs[n].kind == Input::Kind::index) print_position(n);
      const std::string_view name = inputs[n].kind == Input::Kind::read ? "r" : "i";
      text_.values += fmt::format("{}static_cast<float>({}{})", text_.values.empty() ? "" : ", ", name, n);
    }
  }

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

  /// The type of these numbers.
  std::string_view element_type(std::size_t input) const {
    return offset_type(types_, function_.inputs()[input].tensor);
  }

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

  std::vector<std::size_t> varying_axes(std::size_t input) const {
    std::vector<std::size_t> axes;
    for (std::size_t axis = 0; axis < function_.inputs()[input].indices.size(); ++axis) {
      if (varies(function_.inputs()[input].indices[axis])) axes.push_back(axis);
    }
    return axes;
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
  std::string check_of(std::size_t n, std::size_t axis, const std::string& index) {
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

  /// A position as a number of the function.
  void print_position(std::size_t n) {
    const Input& input = function_.inputs()[n];
    const Dependence on = dependence(input);
    const std::string name = fmt::format("i{}", n);
    text_.statements_of(on) +=
        fmt::format("    const float {} = static_cast<float>({});\n", name, position_of(input.index));
    if (Section* const section = text_.section_of(on)) section->add("float", name);
  }

  void print_read(std::size_t n) {
    const std::vector<Input>& inputs = function_.inputs();
    const Input& read = inputs[n];
    const std::string tensor = fmt::format("params.{}[{}]", tensors_, read.tensor);
    const std::string gradient = fmt::format("params.grad_parameters[{}]", read.tensor);
    const std::string_view reader = reader_of(static_cast<NumberType>(types_ >> (4 * read.tensor) & 7U));
    const std::string_view integer = offset_type(types_, read.tensor);
    const bool is_wanted = (wanted_ >> read.tensor & 1U) != 0;
    const Dependence of_read = dependence(read);
    // With one varying axis, the pointer is the same for all threads, and the offset includes the first element: the
    // address is one product and one sum.
    const bool has_first = integer == "int" && varying_axes(n).size() == 1;
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
          text_.constructor += fmt::format("    g{} += gdpa::index::fixed_offset({}, {}, {}, {});\n", n, tensor,
                                           gradient, axis, index.result());
        }
        continue;
      }
      text_.members += fmt::format("  int last{0}_{1};\n  {2} stride{0}_{1};\n", n, axis, integer);
      std::string of_axis = fmt::format("gdpa::index::axis_of({}, {})", tensor, axis);
      if (can_be_token_axis(read, axis, inputs)) {
        const bool is_query = bare_index(read.indices[axis], inputs) == Index::query;
        of_axis = fmt::format("gdpa::index::token_axis_of(params.{}, params.{}, pair.b, pair.{}, {}, {}, {}u)",
                              tensors_, is_query ? "queries" : "keys", is_query ? "length_q" : "length_k", read.tensor,
                              axis, 1U << (reads_ * most_axes + axis));
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
    if (of_read != Dependence::none) {
      text_.statements_of(of_read) +=
          fmt::format("    const auto r{0} = {1}::at(gdpa::index::element(p{0}, {2}));\n", n, reader, offset);
      if (Section* const section = text_.section_of(of_read)) {
        section->add(fmt::format("decltype({}::at(nullptr))", reader), fmt::format("r{}", n));
      }
    } else {
      text_.members += fmt::format("  decltype({}::at(nullptr)) r{};\n", reader, n);
      text_.constructor += fmt::format("    r{0} = {1}::at(p{0});\n", n, reader);
    }
  }

  const Function& function_;
  unsigned types_;
  unsigned wanted_;
  bool is_mask_;
  bool checks_;
  std::string_view tensors_;  // the member of Params
  std::size_t reads_ = 0;
  InputsText text_;
};

}  // namespace

std::string literal(double number) {
  const auto rounded = static_cast<float>(number);
  if (std::isinf(rounded)) return rounded > 0 ? "__int_as_float(0x7f800000)" : "__int_as_float(0xff800000)";
  const std::string digits = fmt::format("{}", rounded);
  const bool is_whole = digits.find_first_of(".e") == std::string::npos;
  return digits + (is_whole ? ".0f" : "f");
}

bool has_inputs_at(const Function& function) {
  return std::any_of(function.inputs().begin(), function.inputs().end(), is_at_position);
}

std::string inputs_header(const Function& function) {
  return fmt::format("#include \"common/no_bias.cuh\"\n{}",
                     function.inputs().empty() ? "" : "#include \"common/index.cuh\"\n");
}

namespace {

/// The number of elements whose index depends on this position only.
int reads_of(const Function& function, Dependence position) {
  const std::vector<Input>& inputs = function.inputs();
  return static_cast<int>(std::count_if(inputs.begin(), inputs.end(), [&](const Input& input) {
    return input.kind == Input::Kind::read && dependence_of(input, inputs) == position;
  }));
}

}  // namespace

int reads_of_lines(const Function& function) {
  return reads_of(function, Dependence::key) + reads_of(function, Dependence::difference);
}

std::string inputs_source(const Function& function, unsigned tensor_types) {
  if (!has_inputs_at(function)) return "using Inputs = gdpa::NoInputs;\n\n";
  const InputsPrinter printer(function, tensor_types, 0, Expression::function);
  const InputsText& text = printer.text();
  const std::string copies = fmt::format(fmt::runtime(text.of_query.copies), "of_query") +
                             fmt::format(fmt::runtime(text.of_key.copies), "of_key") +
                             fmt::format(fmt::runtime(text.of_difference.copies), "of_difference");
  return fmt::format(
      "struct Inputs {{\n{}}};\n\n"
      "struct Bias {{\n"
      "  using Inputs = ::Inputs;\n"
      "  struct OfQuery {{\n{}  }};\n"
      "  struct OfKey {{\n{}  }};\n"
      "  struct OfDifference {{\n{}  }};\n"
      "  static constexpr bool exists = true;\n"
      "  static constexpr bool reads_keys = {}, reads_differences = {};\n"
      "  gdpa::SequencePair pair;\n"
      "{}\n"
      "  Bias() = default;\n"
      "  __device__ __forceinline__ Bias(const gdpa::Params& params, const gdpa::SequencePair& pair_) : pair(pair_) "
      "{{\n"
      "{}"
      "  }}\n\n"
      "  static __device__ __forceinline__ Bias of(const gdpa::Params& params, const gdpa::SequencePair& pair) {{\n"
      "    return {{params, pair}};\n"
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
      "  __device__ __forceinline__ Inputs at(int query, int key, const OfQuery& of_query, const OfKey& of_key, "
      "const OfDifference& of_difference) const {{\n"
      "{}{}"
      "    return {{{}}};\n"
      "  }}\n"
      "}};\n\n",
      text.struct_members, text.of_query.members, text.of_key.members, text.of_difference.members,
      reads_of(function, Dependence::key) > 0, reads_of(function, Dependence::difference) > 0, text.members,
      text.constructor, text.of_query.statements, text.of_query.names, text.of_key.statements, text.of_key.names,
      text.of_difference.statements, text.of_difference.names, copies, text.of_both, text.values);
}

std::string index_check_source(std::string_view name, const Function& function, unsigned tensor_types,
                               Expression expression) {
  const InputsPrinter printer(function, tensor_types, 0, expression, true);
  const InputsText& text = printer.text();
  const std::vector<Input>& inputs = function.inputs();
  const bool exist =
      std::any_of(inputs.begin(), inputs.end(), [](const Input& input) { return input.kind == Input::Kind::read; });
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
      function.text(), name, exist, text.members, name, text.constructor, text.of_both);
}

ConditionInputs condition_inputs(const Function& mask, unsigned tensor_types) {
  const InputsPrinter printer(mask, tensor_types, 0, Expression::mask);
  const InputsText& text = printer.text();
  return {text.members, text.constructor, text.of_query, text.of_key, text.of_difference.statements + text.of_both};
}

std::optional<std::size_t> read_with_sums(const Function& function, unsigned wanted) {
  const std::vector<Input>& inputs = function.inputs();
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    const bool is_wanted = inputs[n].kind == Input::Kind::read && (wanted >> inputs[n].tensor & 1U) != 0;
    if (is_wanted && has_computed_index(inputs[n], inputs) && !is_diagonal(inputs[n], inputs)) return n;
  }
  return std::nullopt;
}

namespace {

/// The statements of a struct Gradients.
struct GradientsText {
  std::string members;
  std::string constructor;
  std::string before;     ///< of add(): declarations
  std::string of_score;   ///< for each of the two scores
  std::string after;      ///< for both
  std::string has_pairs;  ///< conditions
  std::string add_diagonal;
  std::string end;
  std::size_t totals = 0;
  std::size_t diagonals = 0;
};

/// Prints the sums of the inputs `differentiated`, whose derivatives are the results of `program`.
class GradientsPrinter {
 public:
  GradientsPrinter(const Function& function, const InputsPrinter& printer, const Program& program, unsigned wanted,
                   const GradientsForm& form)
      : inputs_(function.inputs()),
        printer_(printer),
        program_(program),
        form_(form),
        with_sums_(read_with_sums(function, wanted)) {}

  /// Prints the sums of input n, whose derivative is the result with this index.
  void add(std::size_t n, std::size_t result) {
    const std::string term = fmt::format("dp * {}", printed_result(program_, inputs_, result));
    const Input& input = inputs_[n];
    const bool is_number = input.kind == Input::Kind::number;
    const std::string gradient = fmt::format("params.grad_parameters[{}]", input.tensor);
    text_.members += fmt::format("  Sum* sums{};\n", n);  // of the head and batch entry
    text_.constructor +=
        fmt::format("    sums{} = static_cast<Sum*>({}.data) + {};\n", n, gradient,
                    is_number ? fmt::format("{}.offset_of_head(pair.head)", gradient) : fmt::format("g{}", n));
    if (is_number) return add_total(n, term);
    if (!printer_.varies(input)) return add_total(n, term);
    if (is_diagonal(input, inputs_)) return add_diagonal(n, term);
    if (!has_computed_index(input, inputs_)) return add_spread(n, term);
    if (n == with_sums_ && form_.sum_threads > 0) return add_thread_sums(n, term);
    text_.of_score +=
        fmt::format("      if (pass == 0) gdpa::add_terms_by_element<Sum, {}>(sums{}, {}, {}, {}, is_valid[c], {});\n",
                    printer_.element_type(n), n, printer_.grad_element(n), printer_.element_number(n), term,
                    n == with_sums_ ? "histogram" : "nullptr");
  }

  const GradientsText& text() const { return text_; }

 private:
  void add_total(std::size_t n, const std::string& term) {
    const std::size_t total = text_.totals++;
    text_.of_score += fmt::format("      if (pass == 0 && is_valid[c]) totals[{}] += {};\n", total, term);
    text_.end += fmt::format(
        "    const float total{0} = gdpa::sum_of_warp(totals[{0}]);\n"
        "    if (threadIdx.x % 32 == 0) sums{1}->add(total{0});\n"
        "    totals[{0}] = 0.0f;\n",
        total, n);
  }

  void add_diagonal(std::size_t n, const std::string& term) {
    const std::size_t diagonal = text_.diagonals++;
    text_.of_score += fmt::format("      if (pass == {}) diagonal[c] = is_valid[c] ? {} : 0.0f;\n", diagonal, term);
    text_.add_diagonal += fmt::format("    if (read == {}) gdpa::add_term_of_lane(sums{}, {}, term);\n", diagonal, n,
                                      printer_.grad_element(n));
  }

  void add_spread(std::size_t n, const std::string& term) {
    text_.before += fmt::format("    float t{0}[2];\n    {1} e{0}[2];\n", n, printer_.element_type(n));
    text_.of_score += fmt::format("      t{0}[c] = {1};\n      e{0}[c] = {2};\n", n, term, printer_.grad_element(n));
    const std::vector<Program>& indices = inputs_[n].indices;
    if (std::none_of(indices.begin(), indices.end(),
                     [&](const Program& index) { return reads_index(index, inputs_, Index::key); })) {
      text_.after +=
          fmt::format("    if (pass == 0) gdpa::add_two_terms_of_row(sums{0}, e{0}[0], t{0}, is_valid);\n", n);
      return;
    }
    text_.after +=
        fmt::format("    if (pass == 0) gdpa::add_two_terms<are_regular>(sums{0}, e{0}, t{0}, is_valid);\n", n);
    text_.has_pairs += fmt::format(" && reinterpret_cast<unsigned long long>(sums{}) % (2 * sizeof(Sum)) == 0", n);
    for (std::size_t axis = 0; axis < indices.size(); ++axis) {
      const std::optional<Index> position = bare_index(indices[axis], inputs_);
      if (position == Index::query) text_.has_pairs += fmt::format(" && s{}_{} % 2 == 0", n, axis);
      if (position == Index::key) {
        text_.has_pairs += fmt::format(" && s{0}_{1} == 1 && first_key + keys - 1 <= last{0}_{1}", n, axis);
      }
    }
  }

  void add_thread_sums(std::size_t n, const std::string& term) {
    text_.before += fmt::format("    float t{0}[2];\n    int e{0}[2];\n", n);
    text_.of_score += fmt::format("      t{0}[c] = is_valid[c] ? {1} : 0.0f;\n      e{0}[c] = {2};\n", n, term,
                                  printer_.element_number(n));
    text_.after +=
        fmt::format("    if (pass == 0) gdpa::add_to_thread_sums<sum_threads>(thread_sums, e{0}, t{0});\n", n);
  }

  const std::vector<Input>& inputs_;
  const InputsPrinter& printer_;
  const Program& program_;
  const GradientsForm& form_;
  std::optional<std::size_t> with_sums_;
  GradientsText text_;
};

}  // namespace

std::string gradients_source(const Function& function, unsigned tensor_types, unsigned wanted,
                             const GradientsForm& form) {
  const std::vector<Input>& inputs = function.inputs();
  std::vector<std::size_t> differentiated;
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    const bool is_wanted = inputs[n].kind != Input::Kind::index && (wanted >> inputs[n].tensor & 1U) != 0;
    if (is_wanted) differentiated.push_back(n);
  }
  const Program exact = function.input_derivatives(differentiated);
  const Program program = form.accuracy == Accuracy::fast ? rewrite_fast(function.value(), exact) : exact;
  const InputsPrinter printer(function, tensor_types, wanted, Expression::function);
  const InputsText& text = printer.text();
  GradientsPrinter sums(function, printer, program, wanted, form);
  for (std::size_t k = 0; k < differentiated.size(); ++k) sums.add(differentiated[k], k);
  const GradientsText& of = sums.text();
  std::string constructor = text.constructor + of.constructor;
  const std::string members = text.members + of.members;
  for (std::size_t i = 0; i < function.parameters().size(); ++i) {
    const bool is_number = std::any_of(inputs.begin(), inputs.end(), [i](const Input& input) {
      return input.kind == Input::Kind::number && input.tensor == i;
    });
    if (is_number) {
      constructor += fmt::format("    parameters[{0}] = gdpa::number_of_head(params.parameters[{0}], pair.head);\n", i);
    }
  }
  const std::optional<std::size_t> with_sums = read_with_sums(function, wanted);
  std::string elements = "0", flush;
  if (with_sums) {
    elements = printer.element_count(*with_sums);
    flush = fmt::format("{}    sums{}[offset].add(term);\n", printer.offset_of_number(*with_sums), *with_sums);
  }
  return fmt::format(
      "{}#include \"common/parameter_sum.cuh\"\n\n"
      "// {}\n"
      "struct Inputs {{\n{}}};\n\n"
      "struct Gradients {{\n"
      "  using Sum = {};\n\n"
      "  gdpa::SequencePair pair;\n"
      "  float parameters[{}];\n"
      "  float totals[{}] = {{}};\n"
      "{}\n"
      "  __device__ __forceinline__ Gradients(const gdpa::Params& params, const gdpa::SequencePair& pair_) : "
      "pair(pair_) {{\n"
      "{}"
      "  }}\n\n"
      "  static __device__ __forceinline__ Gradients of(const gdpa::Params& params, const gdpa::SequencePair& pair) "
      "{{\n"
      "    return {{params, pair}};\n"
      "  }}\n\n"
      "  static constexpr int diagonals = {};\n"
      "  static constexpr int sum_threads = {};\n"
      "  static constexpr bool has_histogram = {};\n"
      "  float* thread_sums = nullptr;\n"
      "  float* histogram = nullptr;\n\n"
      "  __device__ __forceinline__ int64_t elements() const {{ return {}; }}\n\n"
      "  __device__ __forceinline__ void flush([[maybe_unused]] int element, [[maybe_unused]] float term) {{\n"
      "{}"
      "  }}\n\n"
      "  __device__ __forceinline__ bool has_pairs_at([[maybe_unused]] int first_key, [[maybe_unused]] int keys) const "
      "{{\n"
      "    return !Sum::adds_pairs || (true{});\n"
      "  }}\n\n"
      "  template <bool are_regular>\n"
      "  __device__ __forceinline__ void add([[maybe_unused]] int pass, const float (&scores)[2], const float "
      "(&grad_p)[2], [[maybe_unused]] const bool (&is_valid)[2], [[maybe_unused]] int query, int first_key, "
      "[[maybe_unused]] float (&diagonal)[2]) {{\n"
      "{}"
      "#pragma unroll\n"
      "    for (int c = 0; c < 2; ++c) {{\n"
      "      [[maybe_unused]] const float x = scores[c];\n"
      "      [[maybe_unused]] const int key = first_key + c;\n"
      "      const float dp = grad_p[c];\n"
      "{}"
      "      [[maybe_unused]] const Inputs in{{{}}};\n"
      "{}{}"
      "    }}\n"
      "{}"
      "  }}\n\n"
      "  __device__ __forceinline__ void add_diagonal([[maybe_unused]] int read, [[maybe_unused]] int query, "
      "[[maybe_unused]] int key, [[maybe_unused]] float term) {{\n"
      "{}{}"
      "  }}\n\n"
      "  __device__ __forceinline__ void end() {{\n"
      "{}"
      "  }}\n"
      "}};\n",
      inputs_header(function), function.text(), text.struct_members, form.sum, function.parameters().size(),
      std::max<std::size_t>(of.totals, 1), members, constructor, of.diagonals, with_sums ? form.sum_threads : 0,
      of.diagonals == 0 && with_sums && form.sum_threads == 0, elements, flush, of.has_pairs, of.before, text.at(),
      text.values, printed_statements(program, inputs, form.accuracy), of.of_score, of.after,
      of.add_diagonal.empty() ? "" : text.at(), of.add_diagonal, of.end);
}

}  // namespace gdpa::activation
