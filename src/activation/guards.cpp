// See guards.h.
#include "activation/guards.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "activation/lower.h"

namespace gdpa::activation {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// One side of a guard of the score: s is kept at or above `number` (maximum), or at or below it (minimum).
using Bound = std::pair<Operation, double>;

bool is_guard(const Node& node) {
  return (node.operation == Operation::minimum || node.operation == Operation::maximum) && node.edge == Edge::through;
}

/// The score, or a guard of it: beyond the bound of what guards this, and nowhere else, the guard changes something.
bool is_guarded_score(const Tree& tree, NodeId id) {
  while (id != tree.score() && is_guard(tree[id]) && tree.is_number(tree[id].b)) id = tree[id].a;
  return id == tree.score();
}

std::vector<Bound> bounds_of(const Tree& tree, NodeId root) {
  const std::vector<bool> wanted = tree.reachable({root});
  std::vector<Bound> bounds;
  for (NodeId id = 0; id <= root; ++id) {
    const Node& node = tree[id];
    if (!wanted[id] || !is_guard(node) || !tree.is_number(node.b) || !is_guarded_score(tree, node.a)) continue;
    bounds.emplace_back(node.operation, tree[node.b].number);
  }
  return bounds;
}

/// Whether `holds` does from the bound to infinity: guard() promises a function that has levelled out there, so that
/// what is looked for is an infinity or a NaN on the way, and eight scores for every power of two find where something
/// overflows. `last` is the greatest finite one.
template <class Holds>
bool holds_beyond(const Bound& bound, double last, const Holds& holds) {
  const double direction = bound.first == Operation::minimum ? 1 : -1;
  const double first_step = std::ldexp(std::fmax(1, std::fabs(bound.second)), -24);
  for (double step = 0;; step = step == 0 ? first_step : step * std::exp2(1.0 / 8)) {
    const double score = bound.second + direction * step;
    if (direction * score >= last) break;
    if (!holds(score)) return false;
  }
  return holds(direction * last) && holds(direction * infinity);
}

bool is_same_beyond(const Bound& bound, const Program& one, const Program& other) {
  return holds_beyond(bound, std::numeric_limits<double>::max(), [&](double score) {
    return evaluate(one, score)[0] == evaluate(other, score)[0];  // not of NaN
  });
}

constexpr double greatest_fp32 = std::numeric_limits<float>::max();

bool is_needed_at_infinity_only(const Bound& bound, const Program& guarded, const Program& unguarded) {
  const double level = evaluate(unguarded, bound.second)[0];
  return holds_beyond(bound, greatest_fp32, [&](double score) {
    const double without = evaluate(unguarded, score)[0];
    const bool is_lost = std::isinf(score) && std::isnan(without);
    return evaluate(guarded, score)[0] == level && (without == level || is_lost);
  });
}

NodeId without(Tree& tree, NodeId root, const Bound& bound) {
  return tree.rewrite(root, [&](const Node& node) {
    const bool goes = is_guard(node) && node.operation == bound.first && tree.is_number(node.b, bound.second) &&
                      is_guarded_score(tree, node.a);
    return goes ? node.a : tree.make(node);
  });
}

}  // namespace

NodeId without_idle_guards(Tree& tree, NodeId root) {
  for (const Bound& bound : bounds_of(tree, root)) {
    const NodeId shorter = without(tree, root, bound);
    if (is_same_beyond(bound, lower(tree, {root}, ""), lower(tree, {shorter}, ""))) root = shorter;
  }
  return root;
}

Unguarded without_guards_at_infinity(Tree& tree, NodeId root) {
  const Program guarded = lower(tree, {root}, "");
  Unguarded result{root, {-infinity, infinity}};
  for (const Bound& bound : bounds_of(tree, root)) {
    const NodeId shorter = without(tree, result.root, bound);
    if (!is_needed_at_infinity_only(bound, guarded, lower(tree, {shorter}, ""))) continue;
    result.root = shorter;
    double& end = bound.first == Operation::minimum ? result.scores.high : result.scores.low;
    end = bound.first == Operation::minimum ? std::fmin(end, bound.second) : std::fmax(end, bound.second);
  }
  return result;
}

NodeId without_guards(Tree& tree, NodeId root) {
  return tree.rewrite(root, [&](const Node& node) { return is_guard(node) ? node.a : tree.make(node); });
}

bool is_same_or_not_finite(const FactoredProgram& one, const FactoredProgram& other) {
  constexpr float rounding = 1e-5F;
  const auto results_of = [](const FactoredProgram& factored, float score) {
    std::vector<float> results = evaluate_in_fp32(factored.program, score * static_cast<float>(factored.score_factor));
    results[0] *= static_cast<float>(factored.value_factor);
    return results;
  };
  const auto holds = [&](float score) {
    const std::vector<float> expected = results_of(one, score), got = results_of(other, score);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const float allowed = rounding * std::fmax(1.0F, std::fabs(expected[i]));
      if (std::isfinite(got[i]) && !(std::fabs(got[i] - expected[i]) <= allowed)) return false;
    }
    return true;
  };
  constexpr int steps = 16;  // of each power of two
  constexpr float last = std::numeric_limits<float>::max(), beyond = std::numeric_limits<float>::infinity();
  for (double score = std::numeric_limits<float>::min(); score < last; score *= std::exp2(1.0 / steps)) {
    const auto rounded = static_cast<float>(score);
    if (!holds(rounded) || !holds(-rounded)) return false;
  }
  return holds(0) && holds(last) && holds(-last) && holds(beyond) && holds(-beyond);
}

bool is_level_in_fp32(const Program& program, Range scores) {
  const auto is_level_beyond = [&](const Bound& bound) {
    const auto value = [&](double score) { return evaluate_in_fp32(program, static_cast<float>(score))[0]; };
    const float level = value(bound.second);
    return holds_beyond(bound, greatest_fp32, [&](double score) {
      const float beyond = value(score);
      const bool is_same = beyond == level && std::signbit(beyond) == std::signbit(level);
      return is_same || (std::isinf(score) && std::isnan(beyond));
    });
  };
  return (scores.low == -infinity || is_level_beyond({Operation::maximum, scores.low})) &&
         (scores.high == infinity || is_level_beyond({Operation::minimum, scores.high}));
}

}  // namespace gdpa::activation
