// See lower.h.
#include "expression/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "gdpa/error.h"

namespace gdpa::activation {

Program lower(const Tree& tree, const std::vector<NodeId>& roots, const std::string& text) {
  Program program;
  std::vector<std::uint16_t> step_of(tree.size());
  // Two nodes that differ only in the derivative at a tie, or in the order of their operands, have the same value.
  std::map<std::tuple<Operation, std::uint16_t, std::uint16_t>, std::uint16_t> extrema;
  for (const NodeId id : tree.nodes_of(roots)) {
    const Node& node = tree[id];
    Step step{.operation = node.operation, .number = node.number};
    const int operands = operand_count(node.operation);
    if (operands > 0) step.a = step_of[node.a];
    if (operands > 1) step.b = step_of[node.b];
    if (operands > 2) step.c = step_of[node.c];
    if (std::isnan(step.number)) {
      throw Error(ErrorKind::value, fmt::format("a part of \"{}\" or of its derivative is a constant that is "
                                                "not a number, such as 0 / 0 or sqrt(-1); remove it",
                                                text));
    }
    const auto index = static_cast<std::uint16_t>(program.steps.size());
    if (is_extremum(node.operation)) {
      const auto [position, is_new] =
          extrema.try_emplace({node.operation, std::min(step.a, step.b), std::max(step.a, step.b)}, index);
      step_of[id] = position->second;
      if (!is_new) continue;
    }
    if (program.steps.size() == most_steps) {
      throw Error(ErrorKind::value, fmt::format("expected at most {} operations in the function and its "
                                                "derivative, but more came; simplify the expression",
                                                most_steps));
    }
    step_of[id] = index;
    program.steps.push_back(step);
  }
  for (NodeId root : roots) program.results.push_back(step_of[root]);
  return program;
}

namespace {

/// `compute` returns the value of an operation. Without a number, an input is NaN: a caller that compares results
/// then proves nothing.
template <class T, class Compute>
std::vector<T> results_of(const Program& program, T score, const std::vector<double>& inputs, const Compute& compute) {
  const auto leaf = [&](const Step& step) {
    if (step.operation == Operation::score) return score;
    if (step.is_number()) return static_cast<T>(step.number);
    return step.input() < inputs.size() ? static_cast<T>(inputs[step.input()]) : std::numeric_limits<T>::quiet_NaN();
  };
  const std::vector<T> values =
      values_of(program, leaf, [&](const Step& step, T a, T b, T c) { return compute(step.operation, a, b, c); });
  std::vector<T> results;
  for (const std::uint16_t step : program.results) results.push_back(values[step]);
  return results;
}

}  // namespace

std::vector<double> evaluate(const Program& program, double score, const std::vector<double>& inputs) {
  return results_of(program, score, inputs, apply);
}

std::vector<float> evaluate_in_fp32(const Program& program, float score) {
  return results_of(program, score, {}, apply_in_fp32);
}

}  // namespace gdpa::activation
