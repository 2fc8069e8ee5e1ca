// See fast.h.
#include "codegen/fast.h"

#include <cmath>
#include <cstdint>
#include <numbers>
#include <unordered_set>
#include <vector>

#include "expression/lower.h"
#include "expression/tree.h"

namespace gdpa::activation {

namespace {

/// Returns the steps of the program as nodes of the tree. No derivative is taken later, so the nodes need no Edge.
std::vector<NodeId> rebuild(Tree& tree, const Program& program) {
  std::vector<NodeId> nodes;
  nodes.reserve(program.steps.size());
  for (const Step& step : program.steps) {
    Node node{.operation = step.operation, .a = step.a, .b = step.b, .c = step.c, .number = step.number};
    for_each_operand(node, [&](NodeId& operand) { operand = nodes[operand]; });
    nodes.push_back(tree.make(node));
  }
  std::vector<NodeId> results;
  for (std::uint16_t result : program.results) results.push_back(nodes[result]);
  return results;
}

/// The form of c0 + c1 x + c2 x^2: c0 + x (c1 + c2 x), or e + c2 (x - vertex)^2 with vertex = -c1 / (2 c2). If x is a
/// square, the second form has one instruction less if a factor makes c2 = -1, and one more if another step reads x.
enum class Quartic : std::uint8_t { by_powers, from_vertex };

class Rewriting {
 public:
  explicit Rewriting(Tree& tree) : tree_(tree) {}

  // A sigmoid that f multiplies by a varying factor, as in silu and gelu_tanh, becomes 1/2 + 1/2 tanh(x / 2), with one
  // special function instead of two. Its error is absolute, 2.5e-4, and small compared with such a product. Any other
  // sigmoid keeps its relative accuracy for small values.
  void find_factors(NodeId root) {
    for (const NodeId id : tree_.nodes_of({root})) {
      const Node& node = tree_[id];
      if (node.operation != Operation::multiply || tree_.is_number(node.a)) continue;
      for (NodeId factor : {node.a, node.b}) {
        if (tree_[factor].operation == Operation::sigmoid) factors_.insert(factor);
      }
    }
  }

  NodeId run(NodeId root, Quartic quartic) {
    quartic_ = quartic;
    return tree_.rewrite(root, [&](const Node& node, NodeId id) { return rule(id, node); });
  }

 private:
  NodeId number(double value) { return tree_.number(value); }

  NodeId rule(NodeId id, const Node& node) {
    if (node.operation == Operation::exp) return tree_.make(Operation::exp2, scaled(std::numbers::log2e, node.a));
    if (node.operation == Operation::erf) return erf(node.a);
    if (node.operation == Operation::select) return choice(node);
    if (node.operation != Operation::sigmoid) return tree_.make(node);
    if (factors_.count(id) > 0) {
      const NodeId tanh = tree_.make(Operation::tanh, scaled(0.5, node.a));
      return tree_.add(number(0.5), tree_.multiply(number(0.5), tanh));
    }
    const NodeId power = tree_.make(Operation::exp2, scaled(-std::numbers::log2e, node.a));
    return tree_.divide(number(1), tree_.add(number(1), power));
  }

  // Leaky ReLU: for 0 < c <= 1, where(0 < x, x, c x) is max(x, c x), which needs no comparison.
  NodeId choice(const Node& node) {
    const Node& test = tree_[node.a];
    const bool is_leaky = test.operation == Operation::less && tree_.is_number(test.a, 0) && test.b == node.b &&
                          tree_.is_term(node.c) && tree_[node.c].b == node.b;
    if (!is_leaky) return tree_.make(node);
    const double slope = tree_[tree_[node.c].a].number;
    return slope > 0 && slope <= 1 ? tree_.maximum(node.b, node.c) : tree_.make(node);
  }

  // erf(y) is approximated by tanh(y (c0 + c1 y^2 + c2 y^4)). The fit minimises the largest error, which is 3.7e-5. y^2
  // is clamped to 25: there both functions are 1, and the polynomial in y^2 is still below its maximum at
  // -c1 / (2 c2) = 29.1. With y = c z, the coefficients contain the powers of c.
  NodeId erf(NodeId y) {
    constexpr double c0 = 1.1281433792392357, c1 = 0.10408118658876885, c2 = -0.0017864749185219169;
    constexpr double vertex = -c1 / (2 * c2), stop = 25;
    const double scale = tree_.is_term(y) ? tree_[tree_[y].a].number : 1;
    const bool is_moderate = std::fabs(scale) > 1e-3 && std::fabs(scale) < 1e3;  // its powers stay within fp32
    const double c = is_moderate ? scale : 1;
    const NodeId z = is_moderate && tree_.is_term(y) ? tree_[y].b : y;
    const NodeId square = tree_.multiply(z, z);
    NodeId polynomial = 0;
    if (quartic_ == Quartic::from_vertex) {
      const NodeId distance = tree_.add(number(-vertex / (c * c)), square);
      const NodeId bounded = tree_.minimum(distance, number((stop - vertex) / (c * c)));
      const NodeId high = tree_.multiply(number(c2 * std::pow(c, 5)), tree_.multiply(bounded, bounded));
      polynomial = tree_.add(number((c0 - c2 * vertex * vertex) * c), high);
    } else {
      const NodeId bounded = tree_.minimum(square, number(stop / (c * c)));
      const NodeId high = tree_.multiply(number(c2 * std::pow(c, 5)), bounded);
      const NodeId middle = tree_.add(number(c1 * std::pow(c, 3)), high);
      polynomial = tree_.add(number(c0 * c), tree_.multiply(bounded, middle));
    }
    return tree_.make(Operation::tanh, tree_.multiply(z, polynomial));
  }

  NodeId scaled(double factor, NodeId x) { return activation::scaled(tree_, factor, x); }

  Tree& tree_;
  Quartic quartic_ = Quartic::by_powers;
  std::unordered_set<NodeId> factors_;
};

}  // namespace

FastPrograms rewrite_fast(const Program& value, const Program& value_and_derivative, ValueFactor value_factor,
                          ValueFactor both_factor, const HeadInputs& head) {
  Tree tree;
  const NodeId f = rebuild(tree, value)[0];
  const std::vector<NodeId> both = rebuild(tree, value_and_derivative);
  Rewriting rewriting(tree);
  rewriting.find_factors(f);
  rewriting.find_factors(both[0]);  // the same f, with the guards that only the derivative needs
  const NodeId fast_f = rewriting.run(f, Quartic::from_vertex);
  std::vector<NodeId> roots;
  for (const NodeId result : both) roots.push_back(rewriting.run(result, Quartic::by_powers));
  return {factor(tree, {fast_f}, value_factor, head), factor(tree, roots, both_factor, head)};
}

Program rewrite_fast(const Program& value, const Program& program) {
  Tree tree;
  const NodeId f = rebuild(tree, value)[0];
  std::vector<NodeId> results = rebuild(tree, program);
  Rewriting rewriting(tree);
  rewriting.find_factors(f);
  for (NodeId& result : results) result = rewriting.run(result, Quartic::by_powers);
  return lower(tree, results, "");
}

Program joined(const Program& value, const Program& one, const Program& other, bool is_fast) {
  Tree tree;
  const NodeId f = rebuild(tree, value)[0];
  std::vector<NodeId> results = rebuild(tree, one);
  const std::vector<NodeId> others = rebuild(tree, other);
  Rewriting rewriting(tree);
  for (const NodeId root : {f, results[0], others[0]}) rewriting.find_factors(root);
  results.insert(results.end(), others.begin(), others.end());
  if (is_fast) {
    for (NodeId& result : results) result = rewriting.run(result, Quartic::by_powers);
  }
  return lower(tree, results, "");
}

}  // namespace gdpa::activation
