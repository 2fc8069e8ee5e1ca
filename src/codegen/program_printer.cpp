// See program_printer.h.
#include "codegen/program_printer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace gdpa::activation {

std::string literal(double number) {
  const auto rounded = static_cast<float>(number);
  if (std::isinf(rounded)) return rounded > 0 ? "__int_as_float(0x7f800000)" : "__int_as_float(0xff800000)";
  const std::string digits = fmt::format("{}", rounded);
  const bool is_whole = digits.find_first_of(".e") == std::string::npos;
  return digits + (is_whole ? ".0f" : "f");
}

std::string index_literal(double number) {
  if (number != std::floor(number) || std::fabs(number) >= 0x1p62) return literal(number);
  const auto whole = static_cast<long long>(number);
  const bool is_int = std::fabs(number) < 0x1p31;
  return fmt::format("({}{})", whole, is_int ? "" : "ll");
}

std::string_view position_of(Index index) {
  constexpr std::array<std::string_view, index_names.size()> positions = {"static_cast<int>(pair.b)",
                                                                          "pair.head",
                                                                          "query",
                                                                          "key",
                                                                          "pair.length_q",
                                                                          "pair.length_k",
                                                                          "static_cast<int>(pair.first_row_q)",
                                                                          "static_cast<int>(pair.first_row_k)"};
  return positions[static_cast<std::size_t>(index)];
}

std::string member(std::string_view signature, std::string_view statements) {
  return fmt::format("  __device__ __forceinline__ {} {{\n{}  }}\n", signature, statements);
}

std::string getter(std::string_view signature, std::string_view expression) {
  return fmt::format("  __device__ __forceinline__ {} {{ return {}; }}\n", signature, expression);
}

std::string constructor_of_pair(std::string_view name, std::string_view statements) {
  return member(fmt::format("{}(const gdpa::Params& params, const gdpa::SequencePair& pair_) : pair(pair_)", name),
                statements) +
         "\n";
}

std::string of_pair(std::string_view name) {
  return fmt::format(
      "  static __device__ __forceinline__ {} of(const gdpa::Params& params, const gdpa::SequencePair& pair) {{\n"
      "    return {{params, pair}};\n"
      "  }}\n\n",
      name);
}

namespace {

/// The operator between two operands, or nothing.
std::string_view sign_of(Operation operation) {
  using Sign = std::pair<Operation, std::string_view>;
  constexpr Sign signs[] = {{Operation::add, "+"},  {Operation::subtract, "-"},    {Operation::multiply, "*"},
                            {Operation::less, "<"}, {Operation::less_equal, "<="}, {Operation::equal, "=="}};
  const auto* const found = std::ranges::find(signs, operation, &Sign::first);
  return found == std::end(signs) ? std::string_view() : found->second;
}

/// Whether the operation is an approximation: an elementary function, a power or a quotient.
bool is_approximate(Operation operation) {
  return is_elementary(operation) || operation == Operation::power || operation == Operation::divide;
}

constexpr double exponent_of_infinity = 128;

}  // namespace

// --- the walk ----------------------------------------------------------------------------------------------------

std::string ProgramPrinter::statements() const {
  std::string text;
  for (std::size_t i = 0; i < program_.steps.size(); ++i) text += statement(static_cast<std::uint16_t>(i));
  return text;
}

std::string ProgramPrinter::statements_of(std::uint16_t step) const {
  std::vector<bool> is_needed(program_.steps.size());
  is_needed[step] = true;
  for (std::uint16_t i = step; i > 0; --i) {
    if (!is_needed[i] || names_.contains(i)) continue;
    for (const std::uint16_t operand : operands_of(at(i))) is_needed[operand] = true;
  }
  std::string text;
  for (std::uint16_t i = 0; i <= step; ++i) {
    if (is_needed[i]) text += statement(i);
  }
  return text;
}

std::string ProgramPrinter::statement(std::uint16_t step) const {
  if (operand_count(at(step).operation) == 0 || names_.contains(step)) return {};
  return fmt::format("    const {} {}{} = {};\n", type_of(at(step)), prefix_, step, expression(at(step)));
}

std::string ProgramPrinter::operand(std::uint16_t index) const {
  if (const auto named = names_.find(index); named != names_.end()) return named->second;
  const Step& step = at(index);
  if (step.is_number()) return number(step.number);
  if (step.operation == Operation::score) return "x";
  if (step.is_input()) return input(step.input());
  return fmt::format("{}{}", prefix_, index);
}

std::string ProgramPrinter::expression(const Step& step) const {
  const std::string_view sign = sign_of(step.operation);
  if (!sign.empty()) return fmt::format("{} {} {}", operand(step.a), sign, operand(step.b));
  if (step.operation == Operation::negate) return fmt::format("-{}", operand(step.a));
  if (step.operation == Operation::select) {
    return fmt::format("{} ? {} : {}", operand(step.a), operand(step.b), operand(step.c));
  }
  return function(step);
}

std::string ProgramPrinter::call(std::string_view name, const Step& step, std::string_view cast) const {
  std::string arguments;
  for (const std::uint16_t index : operands_of(step)) {
    arguments += arguments.empty() ? "" : ", ";
    arguments += cast.empty() ? operand(index) : fmt::format("{}({})", cast, operand(index));
  }
  return fmt::format("{}({})", name, arguments);
}

// --- fp32 ----------------------------------------------------------------------------------------------------------

std::string RealPrinter::input(std::size_t input) const {
  if (input == inputs_.size()) return fmt::format("parameters[{}]", tensors_);
  if (input > inputs_.size()) return "dp";
  const bool is_number = inputs_[input].kind == Input::Kind::number;
  return is_number ? fmt::format("parameters[{}]", inputs_[input].tensor) : fmt::format("in.v{}", input);
}

std::string RealPrinter::function(const Step& step) const {
  switch (step.operation) {
    case Operation::floor_divide:
      return fmt::format("floorf({})", call("gdpa::exact::divide", step));
    case Operation::absolute:
      return call("fabsf", step);
    case Operation::floor:
      return call("floorf", step);
    case Operation::sign:
    case Operation::minimum:
    case Operation::maximum:
      return call(fmt::format("gdpa::{}", operation_name(step.operation)), step);
    case Operation::divide:
      if (at(step.a).is_number(1)) return fmt::format("{}reciprocal({})", level_, operand(step.b));
      [[fallthrough]];
    default:
      return call(fmt::format("{}{}", level_, operation_name(step.operation)), step);
  }
}

// --- indices and conditions ------------------------------------------------------------------------------------------

IndexPrinter::IndexPrinter(const Program& program, const std::vector<Input>& inputs, std::string prefix)
    : ProgramPrinter(program, inputs, std::move(prefix)), ranges_(enclose_steps(program, Interval<double>::whole())) {}

/// Whether the program uses this step only below a bound of at most `most`.
bool IndexPrinter::is_bounded_above(std::uint16_t step, double most) const {
  if (program_.results[0] == step) return false;
  for (std::uint16_t i = 0; i < program_.steps.size(); ++i) {
    const Step& reader = at(i);
    const std::vector<std::uint16_t> operands = operands_of(reader);
    if (std::ranges::count(operands, step) == 0) continue;
    if (operands.size() != 2) return false;
    const std::uint16_t other = reader.a == step ? reader.b : reader.a;
    const bool is_minimum = reader.operation == Operation::minimum && is_number(other);
    if (is_minimum && at(other).number <= most) continue;
    const bool is_bound = is_minimum || (reader.operation == Operation::maximum && is_number(other));
    if (!is_bound || !is_bounded_above(i, most)) return false;
  }
  return true;
}

/// Whether a step is the floor of a logarithm to the base 2 of a positive normal number, infinity or NaN, and all
/// larger results than the exponent of infinity have the same effect.
bool IndexPrinter::is_floor_log2_from(std::uint16_t step) const {
  constexpr double least_normal = 0x1p-126;
  const Step& floor = at(step);
  if (floor.operation != Operation::floor || at(floor.a).operation != Operation::log2) return false;
  return ranges_[at(floor.a).a].low >= least_normal && is_bounded_above(step, exponent_of_infinity);
}

Interval<double> IndexPrinter::range_of(std::uint16_t step) const {
  Interval<double> range = ranges_[step];
  if (is_floor_log2_from(step)) range.high = std::min(range.high, exponent_of_infinity);
  return range;
}

/// The floor of a logarithm to the base 2.
std::string IndexPrinter::floor_log2(std::uint16_t floor) const {
  const std::uint16_t x = at(at(floor).a).a;
  if (!is_floor_log2_from(floor)) return fmt::format("gdpa::index::floor_log2({})", operand(x));
  return fmt::format("gdpa::index::floor_log2_from({}, {})", operand(x), literal(ranges_[x].low));
}

std::string IndexPrinter::input(std::size_t input) const {
  if (inputs_[input].kind == Input::Kind::index) return std::string(position_of(inputs_[input].index));
  return fmt::format("{}{}", inputs_[input].kind == Input::Kind::number ? "n" : "r", input);
}

std::string IndexPrinter::expression(const Step& step) const {
  const bool is_floor_log2 = step.operation == Operation::floor && at(step.a).operation == Operation::log2;
  if (is_floor_log2) return floor_log2(static_cast<std::uint16_t>(&step - program_.steps.data()));
  const bool is_above =
      step.operation == Operation::maximum && is_number(step.b) && ranges_[step.a].low >= at(step.b).number;
  return is_above ? operand(step.a) : ProgramPrinter::expression(step);
}

std::string IndexPrinter::function(const Step& step) const {
  const std::string_view name = operation_name(step.operation);
  return is_approximate(step.operation) ? call(fmt::format("gdpa::exact::{}", name), step, "static_cast<float>")
                                        : call(fmt::format("gdpa::index::{}", name), step);
}

// --- bounds ----------------------------------------------------------------------------------------------------------

std::string BoundsPrinter::number(double number) const { return fmt::format("number({})", index_literal(number)); }

std::string BoundsPrinter::input(std::size_t input) const {
  const Input& of_function = inputs_[input];
  if (of_function.kind == Input::Kind::number) return fmt::format("number(n{})", input);
  if (of_function.kind == Input::Kind::read) {
    const bool varies = dependence_of(of_function, inputs_) != Dependence::none;
    return varies ? fmt::format("b{}", input) : fmt::format("number(r{})", input);
  }
  const std::string_view position = position_of(of_function.index);
  const bool has_bounds = of_function.index == Index::query || of_function.index == Index::key;
  return has_bounds ? std::string(position) : fmt::format("number({})", position);
}

std::string BoundsPrinter::function(const Step& step) const {
  const bool is_unknown = is_elementary(step.operation) || step.operation == Operation::power;
  return is_unknown ? "unknown(Type::float32)" : call(operation_name(step.operation), step);
}

}  // namespace gdpa::activation
