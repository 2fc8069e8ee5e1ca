// See guards.h.
#include "activation/guards.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "activation/lower.h"

namespace gdpa::activation {

namespace {

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

/// Equal from the bound to infinity. guard() promises a function that has levelled out there, so that what is looked
/// for is an infinity or a NaN on the way: eight numbers for every power of two find where something overflows.
bool is_same_beyond(const Bound& bound, const Program& one, const Program& other) {
  const double direction = bound.first == Operation::minimum ? 1 : -1;
  const double first_step = std::ldexp(std::fmax(1, std::fabs(bound.second)), -16);
  for (double step = 0;; step = step == 0 ? first_step : step * std::exp2(1.0 / 8)) {
    const double score = bound.second + direction * step;
    const double a = evaluate(one, score)[0], b = evaluate(other, score)[0];
    if (a != b) return false;  // a NaN too
    if (std::isinf(score)) return true;
  }
}

}  // namespace

NodeId without_idle_guards(Tree& tree, NodeId root) {
  for (const Bound& bound : bounds_of(tree, root)) {
    const NodeId without = tree.rewrite(root, [&](const Node& node) {
      const bool goes = is_guard(node) && node.operation == bound.first && tree.is_number(node.b, bound.second) &&
                        is_guarded_score(tree, node.a);
      return goes ? node.a : tree.make(node);
    });
    if (is_same_beyond(bound, lower(tree, {root}, ""), lower(tree, {without}, ""))) root = without;
  }
  return root;
}

}  // namespace gdpa::activation
