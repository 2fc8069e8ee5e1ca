// See input.h.
#include "activation/input.h"

#include <algorithm>

namespace gdpa::activation {

std::optional<Index> find_index(std::string_view name) {
  const auto found = std::find(index_names.begin(), index_names.end(), name);
  if (found == index_names.end()) return std::nullopt;
  return static_cast<Index>(found - index_names.begin());
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

bool can_be_token_axis(const Input& read, std::size_t axis, const std::vector<Input>& inputs) {
  const std::optional<Index> bare = bare_index(read.indices[axis], inputs);
  if (bare != Index::query && bare != Index::key) return false;
  return std::none_of(read.indices.begin(), read.indices.end(),
                      [&](const Program& other) { return reads_index(other, inputs, Index::batch); });
}

}  // namespace gdpa::activation
