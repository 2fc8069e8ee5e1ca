// See input.h.
#include "expression/input.h"

#include <algorithm>

namespace gdpa::activation {

std::optional<Index> find_index(std::string_view name) {
  const auto found = std::find(index_names.begin(), index_names.end(), name);
  if (found == index_names.end()) return std::nullopt;
  return static_cast<Index>(found - index_names.begin());
}

const Row* find_row(std::string_view name) {
  const auto found = std::ranges::find(rows, name, &Row::name);
  return found == rows.end() ? nullptr : found;
}

std::optional<Index> bare_index(const Program& program, const std::vector<Input>& inputs) {
  const Step& result = program.steps[program.results[0]];
  if (result.operation != Operation::input) return std::nullopt;
  const Input& input = inputs[static_cast<std::size_t>(result.number)];
  return input.kind == Input::Kind::index ? std::optional(input.index) : std::nullopt;
}

bool reads_index(const Program& program, const std::vector<Input>& inputs, Index index) {
  return std::any_of(program.steps.begin(), program.steps.end(), [&](const Step& step) {
    if (step.operation != Operation::input) return false;
    const Input& input = inputs[static_cast<std::size_t>(step.number)];
    if (input.kind == Input::Kind::index) return input.index == index;
    return std::any_of(input.indices.begin(), input.indices.end(),
                       [&](const Program& of_axis) { return reads_index(of_axis, inputs, index); });
  });
}

bool has_computed_index(const Input& read, const std::vector<Input>& inputs) {
  return std::any_of(read.indices.begin(), read.indices.end(), [&](const Program& index) {
    return dependence_of(index, inputs) != Dependence::none && !bare_index(index, inputs);
  });
}

namespace {

/// Whether the program reads q_idx and kv_idx only as their difference. A read in it may depend on neither.
bool reads_only_difference(const Program& program, const std::vector<Input>& inputs) {
  const auto input_of = [&](std::uint16_t step) -> const Input* {
    const Step& leaf = program.steps[step];
    return leaf.operation == Operation::input ? &inputs[static_cast<std::size_t>(leaf.number)] : nullptr;
  };
  const auto is_position = [&](std::uint16_t step) {
    const Input* const input = input_of(step);
    return input != nullptr && input->kind == Input::Kind::index &&
           (input->index == Index::query || input->index == Index::key);
  };
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    if (const Input* const input = input_of(static_cast<std::uint16_t>(i)); input != nullptr) {
      for (const Program& index : input->indices) {
        if (reads_index(index, inputs, Index::query) || reads_index(index, inputs, Index::key)) return false;
      }
    }
    if (step.operation == Operation::subtract && is_position(step.a) && is_position(step.b)) continue;
    if (std::ranges::any_of(operands_of(step), is_position)) return false;
  }
  return !is_position(program.results[0]);
}

}  // namespace

bool is_diagonal(const Input& read, const std::vector<Input>& inputs) {
  bool has_difference = false;
  for (const Program& index : read.indices) {
    if (!reads_only_difference(index, inputs)) return false;
    has_difference = has_difference || reads_index(index, inputs, Index::query);
  }
  return has_difference;
}

Dependence dependence_of(const Program& program, const std::vector<Input>& inputs) {
  const bool on_query = reads_index(program, inputs, Index::query), on_key = reads_index(program, inputs, Index::key);
  if (on_query && on_key) return reads_only_difference(program, inputs) ? Dependence::difference : Dependence::both;
  return on_query ? Dependence::query : on_key ? Dependence::key : Dependence::none;
}

Dependence dependence_of(const Input& input, const std::vector<Input>& inputs) {
  if (input.kind == Input::Kind::index) {
    return input.index == Index::query ? Dependence::query
           : input.index == Index::key ? Dependence::key
                                       : Dependence::none;
  }
  Dependence all = Dependence::none;
  for (const Program& index : input.indices) {
    const Dependence one = dependence_of(index, inputs);
    if (all == Dependence::none) all = one;
    if (one != Dependence::none && one != all) return Dependence::both;
  }
  return all;
}

}  // namespace gdpa::activation
