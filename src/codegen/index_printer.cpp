// See index_printer.h.
#include "codegen/index_printer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "codegen/cuda_inputs.h"
#include "expression/tree.h"

namespace gdpa::activation {

std::string_view position_of(Index index) {
  switch (index) {
    case Index::batch:
      return "static_cast<int>(pair.b)";
    case Index::head:
      return "pair.head";
    case Index::query:
      return "query";
    case Index::key:
      return "key";
    case Index::length_q:
      return "pair.length_q";
    case Index::length_k:
      return "pair.length_k";
    case Index::first_row_q:
      return "static_cast<int>(pair.first_row_q)";
    case Index::first_row_k:
      return "static_cast<int>(pair.first_row_k)";
  }
  return "";
}

namespace {

constexpr double exponent_of_infinity = 128;

/// The numbers that each step can have.
std::vector<Interval<double>> ranges_of(const Program& program) {
  Program all = program;
  all.results.clear();
  for (std::size_t i = 0; i < all.steps.size(); ++i) all.results.push_back(static_cast<std::uint16_t>(i));
  return enclose(all, Interval<double>::whole());
}

}  // namespace

IndexPrinter::IndexPrinter(const Function& function, const Program& program, std::string prefix)
    : function_(function), program_(program), prefix_(std::move(prefix)), ranges_(ranges_of(program)) {}

std::string IndexPrinter::statements() const {
  std::string text;
  for (std::size_t i = 0; i < program_.steps.size(); ++i) text += statement(static_cast<std::uint16_t>(i));
  return text;
}

std::string IndexPrinter::statements_of(std::uint16_t step) const {
  std::vector<bool> is_needed(program_.steps.size());
  is_needed[step] = true;
  for (std::size_t i = step + std::size_t{1}; i-- > 0;) {
    const Step& of = program_.steps[i];
    const int operands =
        is_needed[i] && !names_.contains(static_cast<std::uint16_t>(i)) ? operand_count(of.operation) : 0;
    if (operands > 0) is_needed[of.a] = true;
    if (operands > 1) is_needed[of.b] = true;
    if (operands > 2) is_needed[of.c] = true;
  }
  std::string text;
  for (std::size_t i = 0; i < program_.steps.size(); ++i) {
    if (is_needed[i]) text += statement(static_cast<std::uint16_t>(i));
  }
  return text;
}

std::string IndexPrinter::statement(std::uint16_t step) const {
  if (operand_count(program_.steps[step].operation) == 0 || names_.contains(step)) return {};
  return fmt::format("    const auto {}{} = {};\n", prefix_, step, expression(program_.steps[step]));
}

/// Whether the program uses this step only below a bound of at most `most`.
bool IndexPrinter::is_bounded_above(std::uint16_t step, double most) const {
  if (program_.results[0] == step) return false;
  for (std::uint16_t i = 0; i < program_.steps.size(); ++i) {
    const Step& reader = program_.steps[i];
    const int operands = operand_count(reader.operation);
    const bool reads =
        (operands > 0 && reader.a == step) || (operands > 1 && reader.b == step) || (operands > 2 && reader.c == step);
    if (!reads) continue;
    if (operands != 2) return false;
    const std::uint16_t other = reader.a == step ? reader.b : reader.a;
    const bool is_minimum = reader.operation == Operation::minimum && is_number(other);
    if (is_minimum && program_.steps[other].number <= most) continue;
    const bool is_bound = is_minimum || (reader.operation == Operation::maximum && is_number(other));
    if (!is_bound || !is_bounded_above(i, most)) return false;
  }
  return true;
}

/// Whether a step is the floor of a logarithm to the base 2 of a positive normal number, infinity or NaN, and all
/// larger results than the exponent of infinity have the same effect.
bool IndexPrinter::is_floor_log2_from(std::uint16_t step) const {
  constexpr double least_normal = 0x1p-126;
  const Step& floor = program_.steps[step];
  if (floor.operation != Operation::floor || program_.steps[floor.a].operation != Operation::log2) return false;
  return ranges_[program_.steps[floor.a].a].low >= least_normal && is_bounded_above(step, exponent_of_infinity);
}

Interval<double> IndexPrinter::range_of(std::uint16_t step) const {
  Interval<double> range = ranges_[step];
  if (is_floor_log2_from(step)) range.high = std::min(range.high, exponent_of_infinity);
  return range;
}

/// The floor of the logarithm of a step to the base 2.
std::string IndexPrinter::floor_log2(std::uint16_t floor, std::uint16_t x) const {
  if (!is_floor_log2_from(floor)) return fmt::format("gdpa::index::floor_log2({})", operand(x));
  return fmt::format("gdpa::index::floor_log2_from({}, {})", operand(x), literal(ranges_[x].low));
}

std::string IndexPrinter::operand(std::uint16_t index) const {
  if (const auto named = names_.find(index); named != names_.end()) return named->second;
  const Step& step = program_.steps[index];
  if (step.operation == Operation::constant) return index_literal(step.number);
  if (step.operation != Operation::input) return fmt::format("{}{}", prefix_, index);
  const auto input = static_cast<std::size_t>(step.number);
  const Input& of_function = function_.inputs()[input];
  switch (of_function.kind) {
    case Input::Kind::number:
      return fmt::format("n{}", input);
    case Input::Kind::index:
      return std::string(position_of(of_function.index));
    case Input::Kind::read:
      return fmt::format("r{}", input);
  }
  return "";
}

std::string IndexPrinter::call(const Step& step, std::string_view name) const {
  const int operands = operand_count(step.operation);
  return operands == 1 ? fmt::format("{}({})", name, operand(step.a))
                       : fmt::format("{}({}, {})", name, operand(step.a), operand(step.b));
}

std::string IndexPrinter::infix(const Step& step, std::string_view sign) const {
  return fmt::format("{} {} {}", operand(step.a), sign, operand(step.b));
}

std::string IndexPrinter::elementary(const Step& step, std::string_view name) const {
  const std::string a = fmt::format("static_cast<float>({})", operand(step.a));
  if (operand_count(step.operation) == 1) return fmt::format("gdpa::exact::{}({})", name, a);
  return fmt::format("gdpa::exact::{}({}, static_cast<float>({}))", name, a, operand(step.b));
}

std::string IndexPrinter::expression(const Step& step) const {
  switch (step.operation) {
    case Operation::constant:
    case Operation::score:
    case Operation::input:
      break;
    case Operation::add:
      return infix(step, "+");
    case Operation::subtract:
      return infix(step, "-");
    case Operation::multiply:
      return infix(step, "*");
    case Operation::divide:
      return elementary(step, "divide");
    case Operation::floor_divide:
      return call(step, "gdpa::index::floor_divide");
    case Operation::negate:
      return fmt::format("-{}", operand(step.a));
    case Operation::absolute:
      return call(step, "gdpa::index::absolute");
    case Operation::sign:
      return call(step, "gdpa::index::sign");
    case Operation::floor:
      if (program_.steps[step.a].operation == Operation::log2) {
        return floor_log2(static_cast<std::uint16_t>(&step - program_.steps.data()), program_.steps[step.a].a);
      }
      return call(step, "gdpa::index::floor");
    case Operation::minimum:
      return call(step, "gdpa::index::minimum");
    case Operation::maximum:
      if (is_number(step.b) && ranges_[step.a].low >= program_.steps[step.b].number) return operand(step.a);
      return call(step, "gdpa::index::maximum");
    case Operation::less:
      return infix(step, "<");
    case Operation::less_equal:
      return infix(step, "<=");
    case Operation::equal:
      return infix(step, "==");
    case Operation::select:
      return fmt::format("{} ? {} : {}", operand(step.a), operand(step.b), operand(step.c));
    case Operation::power:
      return elementary(step, "power");
    case Operation::sqrt:
      return elementary(step, "sqrt");
    case Operation::rsqrt:
      return elementary(step, "rsqrt");
    case Operation::exp:
      return elementary(step, "exp");
    case Operation::exp2:
      return elementary(step, "exp2");
    case Operation::expm1:
      return elementary(step, "expm1");
    case Operation::log:
      return elementary(step, "log");
    case Operation::log2:
      return elementary(step, "log2");
    case Operation::log1p:
      return elementary(step, "log1p");
    case Operation::tanh:
      return elementary(step, "tanh");
    case Operation::sigmoid:
      return elementary(step, "sigmoid");
    case Operation::erf:
      return elementary(step, "erf");
    case Operation::softplus:
      return elementary(step, "softplus");
    case Operation::sin:
      return elementary(step, "sin");
    case Operation::cos:
      return elementary(step, "cos");
  }
  return "";
}

}  // namespace gdpa::activation
