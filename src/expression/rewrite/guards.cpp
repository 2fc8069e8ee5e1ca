// See guards.h.
#include "expression/rewrite/guards.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "expression/lower.h"
#include "expression/rewrite/prove.h"

namespace gdpa::activation {

namespace {

/// One side of a guard of the score: max(s, number) or min(s, number).
using Bound = std::pair<Operation, double>;

bool is_guard(const Node& node) { return is_extremum(node.operation) && node.edge == Edge::through; }

/// Returns whether the node is the score or a guard of the score. A guard of such a node changes scores beyond its
/// bound only.
bool is_guarded_score(const Tree& tree, NodeId id) {
  while (id != tree.score() && is_guard(tree[id]) && tree.is_number(tree[id].b)) id = tree[id].a;
  return id == tree.score();
}

std::vector<Bound> bounds_of(const Tree& tree, NodeId root) {
  std::vector<Bound> bounds;
  for (const NodeId id : tree.nodes_of({root})) {
    const Node& node = tree[id];
    if (!is_guard(node) || !tree.is_number(node.b) || !is_guarded_score(tree, node.a)) continue;
    bounds.emplace_back(node.operation, tree[node.b].number);
  }
  return bounds;
}

/// The scores beyond a bound, including infinity.
Range beyond(const Bound& bound) {
  return bound.first == Operation::minimum ? Range{bound.second, infinity} : Range{-infinity, bound.second};
}

bool is_same_beyond(const Tree& tree, const Bound& bound, NodeId one, NodeId other) {
  const Range scores = beyond(bound);
  return are_equal(lower(tree, {one, other}, ""), scores.low, scores.high);
}

bool is_needed_at_infinity_only(const Tree& tree, const Bound& bound, NodeId guarded, NodeId unguarded) {
  const Program without = lower(tree, {unguarded}, "");
  const Range scores = beyond(bound);
  const double level = evaluate(without, bound.second)[0];
  const double at_infinity = evaluate(without, std::isinf(scores.high) ? scores.high : scores.low)[0];
  return (at_infinity == level || std::isnan(at_infinity)) &&
         is_constant(lower(tree, {guarded}, ""), scores.low, scores.high, level) &&
         is_constant(without, std::fmax(scores.low, -greatest_fp32), std::fmin(scores.high, greatest_fp32), level);
}

NodeId without(Tree& tree, NodeId root, const Bound& bound) {
  return tree.rewrite(root, [&](const Node& node, NodeId) {
    const bool goes = is_guard(node) && node.operation == bound.first && tree.is_number(node.b, bound.second) &&
                      is_guarded_score(tree, node.a);
    return goes ? node.a : tree.make(node);
  });
}

}  // namespace

NodeId without_idle_guards(Tree& tree, NodeId root) {
  for (const Bound& bound : bounds_of(tree, root)) {
    const NodeId shorter = without(tree, root, bound);
    if (is_same_beyond(tree, bound, root, shorter)) root = shorter;
  }
  return root;
}

Unguarded without_guards_at_infinity(Tree& tree, NodeId root) {
  Unguarded result{root, {-infinity, infinity}};
  for (const Bound& bound : bounds_of(tree, root)) {
    const NodeId shorter = without(tree, result.root, bound);
    if (!is_needed_at_infinity_only(tree, bound, root, shorter)) continue;
    result.root = shorter;
    double& end = bound.first == Operation::minimum ? result.scores.high : result.scores.low;
    end = bound.first == Operation::minimum ? std::fmin(end, bound.second) : std::fmax(end, bound.second);
  }
  return result;
}

NodeId without_guards(Tree& tree, NodeId root) {
  return tree.rewrite(root, [&](const Node& node, NodeId) { return is_guard(node) ? node.a : tree.make(node); });
}

}  // namespace gdpa::activation
