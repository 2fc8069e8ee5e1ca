// See condition.h.
#include "codegen/condition.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <vector>

#include "codegen/inputs_printer.h"
#include "codegen/program_printer.h"
#include "definition/tensor_types.h"
#include "expression/tree.h"

namespace gdpa::activation {
namespace {

/// The type of a step in C++, as common/index.cuh and the language determine it. An operation on two types has the
/// later one.
enum class Type { int32, int64, float32 };

/// Bounds with larger constants are computed in 64 bits. Positions and lengths of a GPU are at least this far from the
/// ends of int32 (most_gpu_rows).
constexpr double most_small_constant = 0x1p15;

/// Prints a function that returns the valid columns of a row. `column` is the position of the columns: the key if the
/// rows are queries, the query if the rows are keys.
class WordsPrinter {
 public:
  WordsPrinter(const Function& mask, unsigned tensor_types, Index column)
      : inputs_(mask.inputs()),
        program_(mask.value()),
        types_(tensor_types),
        column_(column),
        printer_(program_, inputs_, "c"),
        has_word_(program_.steps.size()) {
    for (const Step& step : program_.steps) {
      varies_.push_back(step_varies(step));
      step_types_.push_back(type_of(step));
      is_tame_.push_back(step_is_tame(step));
    }
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      if (is_comparison(program_.steps[i].operation)) add_comparison(static_cast<std::uint16_t>(i));
    }
  }

  /// Whether the valid columns of a row are one range, so that the words can be ranges (FragmentRanges).
  bool is_range() const {
    return is_solved() && (words_ + word(program_.results[0])).find_first_of("|~") == std::string::npos;
  }

  /// The statements of the function. Its arguments are the first row, `columns`, and the words `valid`, which are 0.
  std::string text(const Section& of_row, const Section& of_column, const std::string& of_both) const {
    const std::string row = of_row.statements + row_statements() + words_;
    return is_solved() ? solved_text(row) : loop_text(row, of_row, of_column, of_both);
  }

 private:
  /// A bound of the column. A bound that is not wide is an int.
  struct Bound {
    std::string text;
    bool is_wide;
    bool is_tame;  ///< an int that is not near the ends of its type
    bool is_small;
  };
  enum class Relation { below, up_to, from, after };

  const Step& at(std::uint16_t step) const { return program_.steps[step]; }
  const Input& input_of(const Step& step) const { return inputs_[step.input()]; }
  bool is_column(std::uint16_t step) const {
    return at(step).is_input() && input_of(at(step)).kind == Input::Kind::index && input_of(at(step)).index == column_;
  }

  bool step_varies(const Step& step) const {
    if (step.is_input()) return reads_index(input_of(step), inputs_, column_);
    return std::ranges::any_of(operands_of(step), [&](std::uint16_t operand) { return varies_[operand]; });
  }

  Type type_of_input(const Input& input) const {
    if (input.kind == Input::Kind::index) return Type::int32;
    if (input.kind == Input::Kind::number) return Type::float32;
    if (!is_of_integers(types_, input.tensor)) return Type::float32;
    return number_type(types_, input.tensor) == NumberType::int32 ? Type::int32 : Type::int64;
  }

  Type type_of(const Step& step) const {
    const Operation operation = step.operation;
    if (step.is_number()) {
      const bool is_whole = step.number == std::floor(step.number) && std::fabs(step.number) < 0x1p62;
      return !is_whole ? Type::float32 : std::fabs(step.number) < 0x1p31 ? Type::int32 : Type::int64;
    }
    if (step.is_input()) return type_of_input(input_of(step));
    if (is_comparison(operation)) return Type::int32;
    if (operation == Operation::select) return std::max(step_types_[step.b], step_types_[step.c]);
    if (operation == Operation::floor && at(step.a).operation == Operation::log2) return Type::int32;
    if (operation >= Operation::negate && operation <= Operation::floor) return step_types_[step.a];
    const bool keeps_integers = is_sum(operation) || is_extremum(operation) || operation == Operation::multiply ||
                                operation == Operation::floor_divide;
    return keeps_integers ? std::max(step_types_[step.a], step_types_[step.b]) : Type::float32;
  }

  static bool is_small(const Step& step) { return step.is_number() && std::fabs(step.number) < most_small_constant; }

  /// Whether a step has only sums of positions, lengths and small constants.
  bool step_is_tame(const Step& step) const {
    if (step.is_number()) return is_small(step);
    if (step.is_input()) return input_of(step).kind == Input::Kind::index;
    if (step.operation == Operation::negate) return is_tame_[step.a];
    return (is_sum(step.operation) || is_extremum(step.operation)) && is_tame_[step.a] && is_tame_[step.b];
  }

  // --- bounds --------------------------------------------------------------------------------------------------------

  Bound bound_of(std::uint16_t step) const {
    return {printer_.operand(step), step_types_[step] == Type::int64, is_tame_[step], is_small(at(step))};
  }
  static std::string widened(const Bound& bound) {
    return bound.is_wide ? bound.text : fmt::format("static_cast<long long>({})", bound.text);
  }
  static Bound combined(const Bound& a, std::string_view sign, const Bound& b) {
    const bool is_narrow = a.is_tame && b.is_tame && (a.is_small || b.is_small);
    if (is_narrow) return {fmt::format("({} {} {})", a.text, sign, b.text), false, false, false};
    return {fmt::format("({} {} {})", widened(a), sign, widened(b)), true, false, false};
  }
  static Bound negated(const Bound& bound) {
    if (bound.is_tame) return {fmt::format("-({})", bound.text), false, true, bound.is_small};
    return {fmt::format("-({})", widened(bound)), true, false, false};
  }
  static Bound number(long long number) { return {fmt::format("({}ll)", number), true, false, false}; }

  static Relation mirrored(Relation relation) {
    constexpr Relation mirror[] = {Relation::after, Relation::from, Relation::up_to, Relation::below};
    return mirror[static_cast<int>(relation)];
  }
  static bool is_upper(Relation relation) { return relation == Relation::below || relation == Relation::up_to; }

  /// The bound of the relation up_to or from that has the same columns: x < b is x <= b - 1.
  static Bound inclusive(Relation relation, const Bound& bound) {
    if (relation == Relation::below) return combined(bound, "-", number(1));
    if (relation == Relation::after) return combined(bound, "+", number(1));
    return bound;
  }

  static std::string word_of(Relation relation, const Bound& bound) {
    constexpr std::string_view names[] = {"below", "up_to", "from", "after"};
    return fmt::format("columns.{}({})", names[static_cast<int>(relation)], bound.text);
  }

  using Word = std::optional<std::string>;
  static Word joined(const Word& a, char sign, const Word& b) {
    if (!a || !b) return std::nullopt;
    return fmt::format("({} {} {})", *a, sign, *b);
  }

  /// Returns the columns for which an integer step has a relation to a bound, or nothing if this is no bound of the
  /// column. Each rule keeps exactly the same columns for integers that do not overflow.
  Word solved(std::uint16_t index, Relation relation, const Bound& bound) const {
    const Step& step = at(index);
    if (step_types_[index] == Type::float32) return std::nullopt;
    if (is_column(index)) return word_of(relation, bound);
    if (!varies_[index]) {
      constexpr std::string_view signs[] = {"<", "<=", ">=", ">"};
      return fmt::format("columns.all_if({} {} {})", printer_.operand(index), signs[static_cast<int>(relation)],
                         bound.text);
    }
    switch (step.operation) {
      case Operation::add:
        if (!varies_[step.b]) return solved(step.a, relation, combined(bound, "-", bound_of(step.b)));
        if (!varies_[step.a]) return solved(step.b, relation, combined(bound, "-", bound_of(step.a)));
        return std::nullopt;
      case Operation::subtract:
        if (!varies_[step.b]) return solved(step.a, relation, combined(bound, "+", bound_of(step.b)));
        if (!varies_[step.a]) return solved(step.b, mirrored(relation), combined(bound_of(step.a), "-", bound));
        return std::nullopt;
      case Operation::negate:
        return solved(step.a, mirrored(relation), negated(bound));
      case Operation::multiply:
        if (at(step.b).is_number()) return solved_product(step.a, at(step.b).number, relation, bound);
        if (at(step.a).is_number()) return solved_product(step.b, at(step.a).number, relation, bound);
        return std::nullopt;
      case Operation::floor_divide:
        return solved_quotient(step, relation, bound);
      case Operation::minimum:
      case Operation::maximum: {
        const bool is_any = is_upper(relation) == (step.operation == Operation::minimum);
        return joined(solved(step.a, relation, bound), is_any ? '|' : '&', solved(step.b, relation, bound));
      }
      case Operation::absolute:
        return joined(solved(step.a, relation, bound), is_upper(relation) ? '&' : '|',
                      solved(step.a, mirrored(relation), negated(bound)));
      default:
        return std::nullopt;
    }
  }

  /// n x <= b is x <= floor(b / n), and n x >= b is x >= -floor(-b / n), for n > 0.
  Word solved_product(std::uint16_t x, double factor, Relation relation, const Bound& bound) const {
    if (factor == 0 || std::fabs(factor) >= 0x1p31) return std::nullopt;
    const Bound whole = inclusive(relation, bound);
    const bool is_positive = factor > 0;
    const auto quotient = [&](const Bound& of) {
      return Bound{fmt::format("gdpa::index::floor_divide({}, {}ll)", widened(of), std::llround(std::fabs(factor))),
                   true, false, false};
    };
    // With a negative factor, x has the mirrored relation to the negative bound.
    const Bound of_x = is_positive ? whole : negated(whole);
    const bool is_at_most = is_upper(relation) == is_positive;
    return is_at_most ? solved(x, Relation::up_to, quotient(of_x))
                      : solved(x, Relation::from, negated(quotient(negated(of_x))));
  }

  /// floor(x / n) <= b is x < n (b + 1), and floor(x / n) >= b is x >= n b, for n > 0.
  Word solved_quotient(const Step& step, Relation relation, const Bound& bound) const {
    const Step& divisor = at(step.b);
    const bool is_positive = divisor.is_number() && divisor.number >= 1 && divisor.number < 0x1p31;
    if (!is_positive) return std::nullopt;
    const Bound whole = inclusive(relation, bound), n = number(std::llround(divisor.number));
    if (is_upper(relation)) {
      return solved(step.a, Relation::below, combined(n, "*", combined(whole, "+", number(1))));
    }
    return solved(step.a, Relation::from, combined(n, "*", whole));
  }

  // --- comparisons ---------------------------------------------------------------------------------------------------

  Word solved_comparison(std::uint16_t index) const {
    const Step& step = at(index);
    if (!varies_[index]) return fmt::format("columns.all_if({})", printer_.operand(index));
    if (varies_[step.a] && varies_[step.b]) return std::nullopt;
    const std::uint16_t varying = varies_[step.a] ? step.a : step.b, fixed = varies_[step.a] ? step.b : step.a;
    if (step_types_[fixed] == Type::float32) return std::nullopt;
    const Bound bound = bound_of(fixed);
    if (step.operation == Operation::equal) {
      return joined(solved(varying, Relation::up_to, bound), '&', solved(varying, Relation::from, bound));
    }
    const Relation relation = step.operation == Operation::less ? Relation::below : Relation::up_to;
    return solved(varying, varies_[step.a] ? relation : mirrored(relation), bound);
  }

  void add_comparison(std::uint16_t index) {
    const Word solution = solved_comparison(index);
    has_word_[index] = solution.has_value();
    if (solution) words_ += fmt::format("      const auto w{} = {};\n", index, *solution);
  }

  bool is_solved() const {
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      if (is_comparison(program_.steps[i].operation) && !has_word_[i]) return false;
    }
    return true;
  }

  std::string row_statements() const {
    std::string text;
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      if (!varies_[i]) text += printer_.statement(static_cast<std::uint16_t>(i));
    }
    return text;
  }

  std::string_view name_of_row() const { return column_ == Index::key ? "query" : "key"; }
  std::string_view name_of_column() const { return column_ == Index::key ? "key" : "query"; }

  /// Both rows, one after the other.
  std::string solved_text(const std::string& row) const {
    return fmt::format(
        "#pragma unroll\n"
        "    for (int half = 0; half < 2; ++half) {{\n"
        "      [[maybe_unused]] const int {} = first_row + half * 8;\n"
        "{}"
        "      valid[half] = {};\n"
        "    }}\n",
        name_of_row(), row, word(program_.results[0]));
  }

  std::string_view type_name(std::uint16_t index) const {
    if (is_comparison(at(index).operation)) return "bool";
    return step_types_[index] == Type::int32 ? "int" : step_types_[index] == Type::int64 ? "long long" : "float";
  }

  /// A loop over the columns, in which both rows read the inputs of a column. Everything else is computed before it.
  std::string loop_text(const std::string& row, const Section& of_row, const Section& of_column,
                        const std::string& of_both) const {
    std::vector<bool> is_read(program_.steps.size());
    is_read[program_.results[0]] = true;
    Section carried = of_row;  // the variables of a row that the loop reads
    for (std::size_t i = program_.steps.size(); i-- > 0;) {
      const auto index = static_cast<std::uint16_t>(i);
      if (!is_read[i] || operand_count(at(index).operation) == 0) continue;
      if (!varies_[i]) {
        carried.add(type_name(index), fmt::format("c{}", i));
      } else if (has_word_[i]) {
        carried.add("unsigned", fmt::format("w{}", i));
      } else {
        for (const std::uint16_t operand : operands_of(at(index))) is_read[operand] = true;
      }
    }
    std::string steps;
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      if (!is_read[i] || !varies_[i]) continue;
      steps += has_word_[i] ? fmt::format("    const bool c{0} = (w{0} & bit) != 0;\n", i)
                            : printer_.statement(static_cast<std::uint16_t>(i));
    }
    return fmt::format(
        "    struct Row {{\n"
        "      int {0};\n"
        "{1}"
        "    }};\n"
        "    const auto of_row = [&](int {0}) {{\n"
        "{2}"
        "      return Row{{{0}{3}{4}}};\n"
        "    }};\n"
        "    const Row rows[2] = {{of_row(first_row), of_row(first_row + 8)}};\n"
        "    columns.template visit<groups, groups < 16 ? {11} : {12}>([&]([[maybe_unused]] int {5}, unsigned bit) {{\n"
        "{6}"
        "#pragma unroll\n"
        "      for (int half = 0; half < 2; ++half) {{\n"
        "        [[maybe_unused]] const int {0} = rows[half].{0};\n"
        "{7}{8}{9}"
        "        valid[half] |= {10} != 0 ? bit : 0;\n"
        "      }}\n"
        "    }});\n",
        name_of_row(), carried.members(), row, carried.names().empty() ? "" : ", ", carried.names(), name_of_column(),
        of_column.statements, carried.copies("rows[half]"), of_both, steps, printer_.result(), columns_at_once(2),
        columns_at_once(4));
  }

  /// The columns whose elements fit in 2 or 4 registers: 1, 2 or 4. The consumers of Hopper's backward, whose
  /// fragments have few groups, have few free registers.
  int columns_at_once(int registers) const {
    int of_column = 0;
    for (const Input& input : inputs_) {
      const bool is_read = input.kind == Input::Kind::read && reads_index(input, inputs_, column_);
      if (is_read) of_column += type_of_input(input) == Type::int64 ? 2 : 1;
    }
    return std::max(1, registers / std::max(1, of_column));
  }

  /// The word of a truth value: 0, 1, or a selection of truth values.
  std::string word(std::uint16_t index) const {
    const Step& step = at(index);
    if (step.is_number()) return fmt::format("columns.all_if({})", step.number != 0);
    const std::string test = fmt::format("w{}", step.a), yes = word(step.b), no = word(step.c);
    const auto is = [&](std::uint16_t of, double number) { return at(of).is_number(number); };
    if (is(step.b, 1)) return is(step.c, 0) ? test : fmt::format("({} | {})", test, no);
    if (is(step.b, 0)) return is(step.c, 1) ? fmt::format("~{}", test) : fmt::format("(~{} & {})", test, no);
    if (is(step.c, 0)) return fmt::format("({} & {})", test, yes);
    if (is(step.c, 1)) return fmt::format("(~{} | {})", test, yes);
    return fmt::format("(({0} & {1}) | (~{0} & {2}))", test, yes, no);
  }

  const std::vector<Input>& inputs_;
  const Program& program_;
  unsigned types_;
  Index column_;
  IndexPrinter printer_;
  std::vector<bool> varies_;  ///< whether a step depends on the column
  std::vector<Type> step_types_;
  std::vector<bool> is_tame_;
  std::vector<bool> has_word_;  ///< whether a comparison is solved
  std::string words_;
};

}  // namespace

std::string condition_source(const Function& mask, unsigned tensor_types) {
  const InputsPrinter printer(mask, tensor_types, {.expression = Expression::mask});
  const InputsText& inputs = printer.text();
  const std::string of_both = inputs.of_difference.statements + inputs.of_both;
  const IndexPrinter condition(mask.value(), mask.inputs(), "c");
  const auto function = [&](Index column, std::string_view name, const Section& of_row, const Section& of_column) {
    const WordsPrinter words(mask, tensor_types, column);
    return fmt::format(
               "\n  static constexpr bool {}_are_range = {};\n"
               "  template <int groups, class Columns, class Valid>\n",
               name, words.is_range()) +
           member(fmt::format("void valid_{}([[maybe_unused]] int first_row, [[maybe_unused]] const Columns& columns, "
                              "Valid (&valid)[2]) const",
                              name),
                  words.text(of_row, of_column, of_both));
  };
  return fmt::format(
             "// {}\n"
             "struct Condition {{\n"
             "  gdpa::SequencePair pair;\n"
             "{}\n"
             "  Condition() = default;\n",
             mask.text(), inputs.members) +
         constructor_of_pair("Condition", inputs.constructor) +
         member("bool holds([[maybe_unused]] int query, [[maybe_unused]] int key) const",
                fmt::format("{}{}{}{}    return {} != 0;\n", inputs.of_query.statements, inputs.of_key.statements,
                            of_both, condition.statements(), condition.result())) +
         function(Index::key, "keys", inputs.of_query, inputs.of_key) +
         function(Index::query, "queries", inputs.of_key, inputs.of_query) + "};\n\n";
}

}  // namespace gdpa::activation
