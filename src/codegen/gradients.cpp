// See gradients.h.
#include "codegen/gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "codegen/fast.h"
#include "codegen/inputs_printer.h"
#include "expression/lookup.h"
#include "expression/tree.h"

namespace gdpa::activation {

std::optional<std::size_t> read_with_sums(const Function& function, unsigned wanted) {
  const std::vector<Input>& inputs = function.inputs();
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    const bool is_wanted = inputs[n].kind == Input::Kind::read && (wanted >> inputs[n].tensor & 1U) != 0;
    if (is_wanted && has_computed_index(inputs[n], inputs) && !is_diagonal(inputs[n], inputs)) return n;
  }
  return std::nullopt;
}

namespace {

/// Adds the member sums<n>, the sums of the gradient of input n, in a head and batch entry.
void add_sums(std::size_t n, const Input& input, std::string& members, std::string& constructor) {
  const std::string first = input.kind == Input::Kind::number
                                ? fmt::format("params.grad_parameters[{}].offset_of_head(pair.head)", input.tensor)
                                : fmt::format("g{}", n);
  members += fmt::format("  Sum* sums{};\n", n);
  constructor += fmt::format("    sums{} = gdpa::sums_of_cta<Sum>(params, {}) + {};\n", n, input.tensor, first);
}

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

/// Prints the sums of the inputs `differentiated`, whose derivatives are the results of `derivatives`.
class GradientsPrinter {
 public:
  GradientsPrinter(const Function& function, const InputsPrinter& printer, const RealPrinter& derivatives,
                   unsigned wanted, const GradientsForm& form)
      : inputs_(function.inputs()),
        printer_(printer),
        derivatives_(derivatives),
        form_(form),
        with_sums_(read_with_sums(function, wanted)) {}

  /// Prints the sums of input n, whose derivative is the result with this index.
  void add(std::size_t n, std::size_t result) {
    const std::string term = fmt::format("dp * {}", derivatives_.result(result));
    const Input& input = inputs_[n];
    add_sums(n, input, text_.members, text_.constructor);
    if (!printer_.varies(input)) return add_total(n, term);
    if (is_diagonal(input, inputs_)) return add_diagonal(n, term);
    if (!has_computed_index(input, inputs_)) return add_spread(n, term);
    if (n == with_sums_ && form_.sum_threads > 0) return add_thread_sums(n, term);
    text_.of_score +=
        fmt::format("      if (pass == 0) gdpa::add_terms_by_element<Sum, {}>(sums{}, {}, {}, {}, is_valid[c], {});\n",
                    printer_.offset_type(n), n, printer_.grad_element(n), printer_.element_number(n), term,
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
    text_.before += fmt::format("    float t{0}[2];\n    {1} e{0}[2];\n", n, printer_.offset_type(n));
    text_.of_score += fmt::format("      t{0}[c] = {1};\n      e{0}[c] = {2};\n", n, term, printer_.grad_element(n));
    const std::vector<Program>& indices = inputs_[n].indices;
    if (!reads_index(inputs_[n], inputs_, Index::key)) {
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
  const RealPrinter& derivatives_;
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
  const Program exact = function.derivatives(differentiated, false);
  const Program program = form.accuracy == Accuracy::fast ? rewrite_fast(function.value(), exact) : exact;
  const RealPrinter derivatives(program, inputs, form.accuracy);
  const InputsPrinter printer(function, tensor_types, {.wanted = wanted});
  const InputsText& text = printer.text();
  GradientsPrinter sums(function, printer, derivatives, wanted, form);
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
             "struct InputValues {{\n{}}};\n\n"
             "struct Gradients {{\n"
             "  using Sum = {};\n\n"
             "  gdpa::SequencePair pair;\n"
             "  float parameters[{}];\n"
             "  float totals[{}] = {{}};\n"
             "{}\n",
             inputs_header(function), function.text(), text.struct_members, form.sum, function.parameters().size(),
             std::max<std::size_t>(of.totals, 1), members) +
         constructor_of_pair("Gradients", constructor) + of_pair("Gradients") +
         fmt::format(
             "  static constexpr int diagonals = {};\n"
             "  static constexpr int sum_threads = {};\n"
             "  static constexpr bool has_histogram = {};\n"
             "  float* thread_sums = nullptr;\n"
             "  float* histogram = nullptr;\n\n",
             of.diagonals, with_sums ? form.sum_threads : 0, of.diagonals == 0 && with_sums && form.sum_threads == 0) +
         getter("int64_t elements() const", elements) + "\n" +
         member("void flush([[maybe_unused]] int element, [[maybe_unused]] float term)", flush) + "\n" +
         member("bool has_pairs_at([[maybe_unused]] int first_key, [[maybe_unused]] int keys) const",
                fmt::format("    return !Sum::adds_pairs || (true{});\n", of.has_pairs)) +
         "\n  template <bool are_regular>\n" +
         member(
             "void add([[maybe_unused]] int pass, const float (&scores)[2], const float (&grad_p)[2], "
             "[[maybe_unused]] const bool (&is_valid)[2], [[maybe_unused]] int query, int first_key, "
             "[[maybe_unused]] float (&diagonal)[2])",
             fmt::format("{}"
                         "#pragma unroll\n"
                         "    for (int c = 0; c < 2; ++c) {{\n"
                         "      [[maybe_unused]] const float x = scores[c];\n"
                         "      [[maybe_unused]] const int key = first_key + c;\n"
                         "      const float dp = grad_p[c];\n"
                         "{}"
                         "      [[maybe_unused]] const InputValues in{{{}}};\n"
                         "{}{}"
                         "    }}\n"
                         "{}",
                         of.before, text.at(), text.values, derivatives.statements(), of.of_score, of.after)) +
         "\n" +
         member(
             "void add_diagonal([[maybe_unused]] int read, [[maybe_unused]] int query, [[maybe_unused]] int key, "
             "[[maybe_unused]] float term)",
             of.add_diagonal.empty() ? "" : text.at() + of.add_diagonal) +
         "\n" + member("void end()", of.end) + "};\n";
}

namespace {

/// The kind of sum that the gradient of an input has if its terms are dS.
enum class ScoreSum : std::uint8_t { none, total, diagonal, spread, lookup };

/// `is_lookup`: the read is one of lookups_with_ranges().
ScoreSum score_sum_of(const Input& input, const std::vector<Input>& inputs, bool is_lookup) {
  if (input.kind == Input::Kind::number) return ScoreSum::total;
  switch (dependence_of(input, inputs)) {
    case Dependence::none:
      return ScoreSum::total;
    case Dependence::difference:
      return ScoreSum::diagonal;
    case Dependence::both:
      if (!has_computed_index(input, inputs)) return ScoreSum::spread;
      return is_lookup ? ScoreSum::lookup : ScoreSum::none;
    case Dependence::query:
    case Dependence::key:
      break;
  }
  return ScoreSum::none;
}

/// Returns the factor of an input if the program is a sum of a constant times this input and of other inputs.
std::optional<double> factor_in(const Program& program, std::size_t input) {
  using Factor = std::optional<double>;  // of a step; 0 if it does not depend on the input
  const auto leaf = [&](const Step& step) -> Factor { return step.is_input() && step.input() == input ? 1.0 : 0.0; };
  const auto rule = [&](const Step& step, const Factor& a, const Factor& b, const Factor& c) -> Factor {
    const int operands = operand_count(step.operation);
    if (a == 0.0 && (operands < 2 || b == 0.0) && (operands < 3 || c == 0.0)) return 0.0;
    const Step &left = program.steps[step.a], &right = program.steps[step.b];
    if (step.operation == Operation::negate && a) return -*a;
    if (is_sum(step.operation) && a && b) return step.operation == Operation::add ? *a + *b : *a - *b;
    if (step.operation == Operation::multiply && left.is_number() && b) return left.number * *b;
    if (step.operation == Operation::multiply && right.is_number() && a) return right.number * *a;
    return std::nullopt;
  };
  return values_of(program, leaf, rule)[program.results[0]];
}

}  // namespace

bool is_read_by_all_positions(const Input& read, const std::vector<Input>& inputs) {
  constexpr std::array positions = {Index::batch, Index::head, Index::query, Index::key};
  return read.indices.size() == positions.size() && std::ranges::all_of(positions, [&](Index position) {
           return std::ranges::any_of(read.indices,
                                      [&](const Program& index) { return bare_index(index, inputs) == position; });
         });
}

unsigned tensors_of_score(const Function& function, unsigned tensor_types, bool takes_spread) {
  if (function.of_sum() == nullptr || function.functions() > 1) return 0;
  const std::vector<Input>& inputs = function.inputs();
  const std::vector<Lookup> lookups = lookups_with_ranges(function, tensor_types);
  unsigned all = 0, others = 0;
  int spread = 0;
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    if (inputs[n].kind == Input::Kind::index) continue;
    const ScoreSum sum = score_sum_of(inputs[n], inputs, std::ranges::count(lookups, n, &Lookup::read) > 0);
    const unsigned tensor = 1U << inputs[n].tensor;
    spread += sum == ScoreSum::spread ? 1 : 0;
    const bool is_read_alone =
        sum == ScoreSum::lookup ? lookups.size() == 1 : sum != ScoreSum::spread || (takes_spread && spread == 1);
    const bool is_known = sum != ScoreSum::none && is_read_alone && factor_in(function.shift(), n);
    (is_known ? all : others) |= tensor;
  }
  return all & ~others;
}

std::string score_gradients_source(const Function& function, unsigned tensor_types, unsigned wanted,
                                   std::string_view sum, bool own_elements) {
  const std::vector<Input>& inputs = function.inputs();
  const InputsPrinter printer(function, tensor_types, {.wanted = wanted});
  const InputsText& text = printer.text();
  const std::vector<Lookup> lookups = lookups_with_ranges(function, tensor_types);
  std::string members, constructor, totals, diagonals, spread;
  int diagonal_count = 0;
  std::string element = "0", add_to_element;  // of the only diagonal
  std::string index_of_lookup = "      return 0;\n", add_to_lookup;
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    const Input& input = inputs[n];
    if (input.kind == Input::Kind::index || (wanted >> input.tensor & 1U) == 0) continue;
    const std::string factor = literal(factor_in(function.shift(), n).value());
    add_sums(n, input, members, constructor);
    const auto lookup = std::ranges::find(lookups, n, &Lookup::read);
    switch (score_sum_of(input, inputs, lookup != lookups.end())) {
      case ScoreSum::none:
        break;
      case ScoreSum::lookup:
        index_of_lookup = lookup_index_source(function, *lookup);
        add_to_lookup =
            fmt::format("    sums{0}[index_of_lookup(entry) * s{0}_{1}].add({2} * term);\n", n, lookup->axis, factor);
        break;
      case ScoreSum::total:
        totals += fmt::format("    sums{}->add({} * term);\n", n, factor);
        break;
      case ScoreSum::diagonal:
        ++diagonal_count;
        element = printer.grad_element(n);
        diagonals += fmt::format("    sums{}[{}].add({} * term);\n", n, element, factor);
        add_to_element = fmt::format("    sums{}[element].add({} * term);\n", n, factor);
        break;
      case ScoreSum::spread: {
        std::string of_query, of_key, has_queries, has_keys;  // strides and conditions
        std::string own = own_elements ? "true" : "false";
        for (const std::size_t axis : printer.varying_axes(n)) {
          const bool is_key = bare_index(input.indices[axis], inputs) == Index::key;
          std::string& strides = is_key ? of_key : of_query;
          strides += fmt::format("{}s{}_{}", strides.empty() ? "" : " + ", n, axis);
          (is_key ? has_keys : has_queries) +=
              fmt::format(" && {} + count - 1 <= last{}_{}", is_key ? "key" : "query", n, axis);
          // An index beyond the axis is clamped to an element of another score.
          own += fmt::format(" && pair.length_{} - 1 <= last{}_{}", is_key ? "k" : "q", n, axis);
        }
        const std::string_view type = printer.offset_type(n);
        const auto offset = [&](std::string_view position, Dependence side, const Section& section) {
          return member(fmt::format("{0} offset_of_{1}(int {1}) const", type, position),
                        fmt::format("{}    return {};\n", section.statements, printer.grad_element(n, side)));
        };
        spread = fmt::format("  static constexpr float factor = {};\n", factor) +
                 getter("Sum* elements() const", fmt::format("sums{}", n)) +
                 offset("query", Dependence::query, text.of_query) + offset("key", Dependence::key, text.of_key) +
                 getter("bool has_adjacent_keys(int key, int count) const", of_key + " == 1" + has_keys) +
                 getter("bool has_queries(int query, int count) const", "true" + has_queries) +
                 getter(fmt::format("{} query_stride() const", type), of_query) +
                 getter("bool has_own_elements() const", own);
        break;
      }
    }
  }
  const std::string of_difference = diagonals.empty() ? "" : text.of_difference.statements;
  return fmt::format(
             "#include \"common/parameter_sum.cuh\"\n\n"
             "struct TensorGradients {{\n"
             "  using Sum = {};\n"
             "  static constexpr bool have_totals = {}, are_spread = {}, has_lookup = {};\n"
             "  static constexpr int diagonals = {};\n\n"
             "  gdpa::SequencePair pair;\n"
             "{}{}\n",
             sum, !totals.empty(), !spread.empty(), !add_to_lookup.empty(), diagonal_count, text.members, members) +
         constructor_of_pair("TensorGradients", text.constructor + constructor) +
         member("void add_total([[maybe_unused]] float term)", totals) + "\n" +
         member("auto element_of_diagonal([[maybe_unused]] int query, [[maybe_unused]] int key) const",
                fmt::format("{}    return {};\n", of_difference, element)) +
         "  template <class Element>\n" +
         member("void add_to_element([[maybe_unused]] Element element, [[maybe_unused]] float term)", add_to_element) +
         member("void add_diagonal([[maybe_unused]] int query, [[maybe_unused]] int key, [[maybe_unused]] float term)",
                of_difference + diagonals) +
         "\n" + member("int index_of_lookup([[maybe_unused]] int entry) const", index_of_lookup) +
         member("void add_to_lookup([[maybe_unused]] int entry, [[maybe_unused]] float term)", add_to_lookup) + "\n" +
         spread + "};\n\n";
}

std::string stored_terms_source(const Function& function, unsigned wanted, std::string_view element) {
  const std::vector<Input>& inputs = function.inputs();
  const auto read = std::ranges::find_if(inputs, [&](const Input& input) {
    return input.kind == Input::Kind::read && (wanted >> input.tensor & 1U) != 0;
  });
  const auto n = static_cast<std::size_t>(read - inputs.begin());
  return fmt::format(
      "struct StoredTensor {{\n"
      "  using Element = {};\n"
      "  static constexpr int tensor = {};\n"
      "  static constexpr float factor = {};\n"
      "}};\n\n",
      element, read->tensor, literal(factor_in(function.shift(), n).value()));
}

}  // namespace gdpa::activation
