// See lookup.h.
#include "expression/lookup.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "definition/tensor_types.h"
#include "expression/rewrite/interval.h"
#include "expression/tree.h"

namespace gdpa::activation {

namespace {

/// The steps that read a step.
std::vector<std::uint16_t> readers_of(const Program& program, std::uint16_t step) {
  std::vector<std::uint16_t> readers;
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    if (std::ranges::count(operands_of(program.steps[i]), step) > 0) readers.push_back(static_cast<std::uint16_t>(i));
  }
  return readers;
}

/// Whether the step is an element of a tensor that depends on this position alone.
bool is_read_of(const Program& program, std::uint16_t step, const std::vector<Input>& inputs, Dependence position) {
  if (!program.steps[step].is_input()) return false;
  const Input& input = inputs[program.steps[step].input()];
  return input.kind == Input::Kind::read && dependence_of(input, inputs) == position;
}

/// The only subtraction through which a program reads the positions i and j.
std::optional<std::uint16_t> subtraction_step(const Program& program, const std::vector<Input>& inputs) {
  std::optional<std::uint16_t> subtraction;
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    if (!step.is_input() || dependence_of(inputs[step.input()], inputs) == Dependence::none) continue;
    const std::vector<std::uint16_t> readers = readers_of(program, static_cast<std::uint16_t>(i));
    if (readers.size() != 1 || program.results[0] == i || (subtraction && subtraction != readers[0])) return {};
    subtraction = readers[0];
  }
  if (!subtraction) return {};
  const Step& step = program.steps[*subtraction];
  const auto reads = [&](Dependence first, Dependence second) {
    return is_read_of(program, step.a, inputs, first) && is_read_of(program, step.b, inputs, second);
  };
  const bool is_of_both = reads(Dependence::query, Dependence::key) || reads(Dependence::key, Dependence::query);
  return step.operation == Operation::subtract && is_of_both ? subtraction : std::nullopt;
}

/// How a number changes if the difference rises.
enum class Trend : std::uint8_t { none, rising, falling, unknown };

Trend reversed(Trend trend) {
  return trend == Trend::rising ? Trend::falling : trend == Trend::falling ? Trend::rising : trend;
}
Trend both(Trend a, Trend b) {
  if (a == Trend::none) return b;
  return b == Trend::none || a == b ? a : Trend::unknown;
}

Trend trend_of(const Program& program, std::uint16_t of, std::uint16_t difference) {
  if (of == difference) return Trend::rising;
  const Step& step = program.steps[of];
  const auto operand = [&](std::uint16_t a) { return trend_of(program, a, difference); };
  const auto is_positive = [&](std::uint16_t a) { return program.steps[a].is_number() && program.steps[a].number > 0; };
  switch (step.operation) {
    case Operation::constant:
    case Operation::input:
      return Trend::none;
    case Operation::add:
    case Operation::minimum:
    case Operation::maximum:
      return both(operand(step.a), operand(step.b));
    case Operation::subtract:
      return both(operand(step.a), reversed(operand(step.b)));
    case Operation::negate:
      return reversed(operand(step.a));
    case Operation::floor:  // the logarithm of a number that is not positive is below all others
      return operand(program.steps[step.a].operation == Operation::log2 ? program.steps[step.a].a : step.a);
    case Operation::multiply:
      if (is_positive(step.a)) return operand(step.b);
      return is_positive(step.b) ? operand(step.a) : Trend::unknown;
    case Operation::divide:
    case Operation::floor_divide:
      return is_positive(step.b) ? operand(step.a) : Trend::unknown;
    default:
      return Trend::unknown;
  }
}

/// Whether all numbers of an index fit into 32 bits if the difference is at most 2^30.
bool fits_32_bits(const Program& program, std::uint16_t difference, bool is_absolute, std::size_t inputs) {
  constexpr double most_close = 0x1p30, most = 0x1p31 - 1;
  Program of_close = program;
  of_close.steps[difference] = {.operation = Operation::input, .number = static_cast<double>(inputs)};
  std::vector<Interval<double>> numbers(inputs + 1, Interval<double>::whole());
  numbers[inputs] = {is_absolute ? 0 : -most_close, most_close, false};
  std::vector<std::uint16_t> left = program.results;
  while (!left.empty()) {
    const std::uint16_t step = left.back();
    left.pop_back();
    of_close.results = {step};
    const Interval<double> range = enclose_outward(of_close, numbers);
    if (std::max(-range.low, range.high) > most || std::isnan(range.low)) return false;
    for (const std::uint16_t operand : operands_of(of_close.steps[step])) left.push_back(operand);
  }
  return true;
}

/// Whether a LookupForm other than `any` exists for lookups of these differences.
bool has_forms(const LookupDifference& difference) {
  return difference.fits_32_bits || (!difference.is_of_integers && difference.is_monotone);
}

}  // namespace

std::optional<std::size_t> tile_read(const Function& function, unsigned tensor_types) {
  if (function.functions() > 1) return std::nullopt;  // the other functions of a list have no use for the copy
  const std::vector<Input>& inputs = function.inputs();
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    if (inputs[n].kind != Input::Kind::read || is_of_integers(tensor_types, inputs[n].tensor)) continue;
    const auto count = [&](auto is_counted) { return std::ranges::count_if(inputs[n].indices, is_counted); };
    const auto has_one_axis_of = [&](Index position) {
      return count([&](const Program& index) { return bare_index(index, inputs) == position; }) == 1;
    };
    const bool has_others =
        count([&](const Program& index) { return dependence_of(index, inputs) != Dependence::none; }) > 2;
    if (has_one_axis_of(Index::query) && has_one_axis_of(Index::key) && !has_others) return n;
  }
  return std::nullopt;
}

std::vector<Lookup> lookups_of(const Function& function, unsigned tensor_types) {
  if (function.functions() > 1 || tile_read(function, tensor_types)) return {};
  const std::vector<Input>& inputs = function.inputs();
  std::vector<Lookup> lookups;
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    if (inputs[n].kind != Input::Kind::read || is_of_integers(tensor_types, inputs[n].tensor)) continue;
    std::vector<std::size_t> varying;
    for (std::size_t axis = 0; axis < inputs[n].indices.size(); ++axis) {
      if (dependence_of(inputs[n].indices[axis], inputs) != Dependence::none) varying.push_back(axis);
    }
    const bool has_one = varying.size() == 1;
    if (has_one && dependence_of(inputs[n].indices[varying[0]], inputs) == Dependence::both) {
      lookups.push_back({n, varying[0]});
    }
  }
  return lookups;
}

std::optional<std::uint16_t> difference_step(const Program& program, const std::vector<Input>& inputs) {
  const std::optional<std::uint16_t> subtraction = subtraction_step(program, inputs);
  if (!subtraction || program.results[0] == *subtraction) return subtraction;
  const std::vector<std::uint16_t> readers = readers_of(program, *subtraction);
  const bool is_absolute = readers.size() == 1 && program.steps[readers[0]].operation == Operation::absolute;
  return is_absolute ? readers[0] : *subtraction;
}

std::optional<LookupDifference> lookup_difference(const Function& function, const std::vector<Lookup>& lookups,
                                                  unsigned tensor_types) {
  const std::vector<Input>& inputs = function.inputs();
  std::optional<LookupDifference> all;
  bool fit = true, are_monotone = true;
  for (const Lookup& lookup : lookups) {
    const Program& program = inputs[lookup.read].indices[lookup.axis];
    const std::optional<std::uint16_t> difference = difference_step(program, inputs);
    if (!difference) return {};
    const bool is_absolute = program.steps[*difference].operation == Operation::absolute;
    const Step& subtraction = program.steps[is_absolute ? program.steps[*difference].a : *difference];
    const bool is_query_first = is_read_of(program, subtraction.a, inputs, Dependence::query);
    std::size_t of_query = program.steps[subtraction.a].input(), of_key = program.steps[subtraction.b].input();
    if (!is_query_first) std::swap(of_query, of_key);
    const bool are_integers =
        is_of_integers(tensor_types, inputs[of_query].tensor) && is_of_integers(tensor_types, inputs[of_key].tensor);
    const LookupDifference one = {of_query, of_key, is_query_first, is_absolute, are_integers, true, true};
    if (all && *all != one) return {};
    all = one;
    fit = fit && fits_32_bits(program, *difference, is_absolute, inputs.size());
    const Trend trend = trend_of(program, program.results[0], *difference);
    are_monotone = are_monotone && trend != Trend::unknown;
  }
  if (!all) return {};
  all->fits_32_bits = all->is_of_integers && fit;
  all->is_monotone = are_monotone;
  return all;
}

bool has_lookup_forms(const Function& function, unsigned tensor_types) {
  const std::optional<LookupDifference> difference =
      lookup_difference(function, lookups_of(function, tensor_types), tensor_types);
  return difference && has_forms(*difference);
}

std::vector<Lookup> lookups_with_ranges(const Function& function, unsigned tensor_types) {
  std::vector<Lookup> lookups = lookups_of(function, tensor_types);
  const std::optional<LookupDifference> difference = lookup_difference(function, lookups, tensor_types);
  return difference && difference->is_monotone && has_forms(*difference) ? lookups : std::vector<Lookup>{};
}

}  // namespace gdpa::activation
