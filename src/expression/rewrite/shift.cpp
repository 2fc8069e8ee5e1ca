// Finds functions of a sum: see find_shift() in forms.h.
#include "expression/rewrite/forms.h"

#include <algorithm>
#include <vector>

namespace gdpa::activation {

namespace {

/// Returns e if the node is the score plus e, and e does not depend on the score.
std::optional<NodeId> added_to_score(Tree& tree, NodeId id) {
  if (id == tree.score()) return tree.number(0);
  const Node node = tree[id];
  if (!is_sum(node.operation)) return std::nullopt;
  const bool adds = node.operation == Operation::add;
  if (!tree.reads_score(node.b)) {
    const std::optional<NodeId> rest = added_to_score(tree, node.a);
    if (!rest) return std::nullopt;
    return adds ? tree.add(*rest, node.b) : tree.subtract(*rest, node.b);
  }
  if (!adds || tree.reads_score(node.a)) return std::nullopt;
  const std::optional<NodeId> rest = added_to_score(tree, node.b);
  return rest ? std::optional(tree.add(node.a, *rest)) : std::nullopt;
}

bool reads_input(const Tree& tree, NodeId root) {
  return std::ranges::any_of(tree.nodes_of({root}), [&](NodeId id) { return tree[id].operation == Operation::input; });
}

/// Returns the expression as a function of the sum, in a tree of its own; none if it reads the score or an input apart
/// from the sum.
std::optional<Shift> as_function_of(const Tree& tree, NodeId root, NodeId sum) {
  Shift result;
  std::vector<bool> wanted(root + 1);
  wanted[root] = true;
  for (NodeId id = root + 1; id-- > 0;) {
    if (!wanted[id] || id == sum) continue;
    const Node& node = tree[id];
    if (node.operation == Operation::score || node.operation == Operation::input) return std::nullopt;
    for_each_operand(node, [&](NodeId operand) { wanted[operand] = true; });
  }
  std::vector<NodeId> copies(root + 1);
  for (NodeId id = 0; id <= root; ++id) {
    if (!wanted[id]) continue;
    Node node = tree[id];
    if (id != sum) for_each_operand(node, [&](NodeId& operand) { operand = copies[operand]; });
    copies[id] = id == sum ? result.of_sum.score() : result.of_sum.make(node);
  }
  result.root = copies[root];
  return result;
}

}  // namespace

std::optional<Shift> find_shift(Tree& tree, NodeId root) {
  const std::vector<NodeId> nodes = tree.nodes_of({root});
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    if (*node == tree.score()) continue;
    const std::optional<NodeId> shift = added_to_score(tree, *node);
    if (!shift || !reads_input(tree, *shift)) continue;
    std::optional<Shift> found = as_function_of(tree, root, *node);
    if (found) found->shift = *shift;
    return found;
  }
  return std::nullopt;
}

}  // namespace gdpa::activation
