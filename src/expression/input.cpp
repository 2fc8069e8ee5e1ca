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
  if (!result.is_input() || inputs[result.input()].kind != Input::Kind::index) return std::nullopt;
  return inputs[result.input()].index;
}

bool reads_index(const Program& program, const std::vector<Input>& inputs, Index index) {
  return std::ranges::any_of(inputs_of(program), [&](std::size_t n) { return reads_index(inputs[n], inputs, index); });
}

bool reads_index(const Input& input, const std::vector<Input>& inputs, Index index) {
  if (input.kind == Input::Kind::index) return input.index == index;
  return std::ranges::any_of(input.indices,
                             [&](const Program& of_axis) { return reads_index(of_axis, inputs, index); });
}

bool has_computed_index(const Input& read, const std::vector<Input>& inputs) {
  return std::any_of(read.indices.begin(), read.indices.end(), [&](const Program& index) {
    return dependence_of(index, inputs) != Dependence::none && !bare_index(index, inputs);
  });
}

namespace {

/// Whether the program reads q_idx and kv_idx only as their difference. A read in it may depend on neither.
bool reads_only_difference(const Program& program, const std::vector<Input>& inputs) {
  const auto is_position = [](const Input& input) {
    return input.kind == Input::Kind::index && (input.index == Index::query || input.index == Index::key);
  };
  const auto is_position_step = [&](std::uint16_t step) {
    return program.steps[step].is_input() && is_position(inputs[program.steps[step].input()]);
  };
  for (const Step& step : program.steps) {
    if (step.is_input() && !is_position(inputs[step.input()]) &&
        dependence_of(inputs[step.input()], inputs) != Dependence::none) {
      return false;
    }
    if (step.operation == Operation::subtract && is_position_step(step.a) && is_position_step(step.b)) continue;
    if (std::ranges::any_of(operands_of(step), is_position_step)) return false;
  }
  return !is_position_step(program.results[0]);
}

}  // namespace

bool is_diagonal(const Input& read, const std::vector<Input>& inputs) {
  return reads_index(read, inputs, Index::query) &&
         std::ranges::all_of(read.indices, [&](const Program& index) { return reads_only_difference(index, inputs); });
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
