// The symbolic derivative of a tree. Two methods keep the result finite where its limit is finite, at the least cost:
//  - A gate, select(condition, x, 0), is moved out of every product: select(condition, x * y, 0). The closed branch is
//    then 0 even if y is infinite, and it costs nothing.
//  - If b' / b is simple, the derivative of a product uses the product itself, f' = a' b + f (b' / b), and shares the
//    product with the value. A factor that is infinite on one side only is bounded if the derivative of the other
//    factor vanishes on this side.
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <utility>
#include <vector>

#include "expression/tree.h"

namespace gdpa::activation {

namespace {

class Differentiator {
 public:
  Differentiator(Tree& tree, NodeId variable) : tree_(tree), variable_(variable) {}

  NodeId run(NodeId root) {
    derivatives_.assign(root + 1, zero());
    for (const NodeId id : tree_.nodes_of({root})) derivatives_[id] = id == variable_ ? number(1) : rule(id);
    return derivatives_[root];
  }

 private:
  NodeId number(double value) { return tree_.number(value); }
  NodeId zero() { return number(0); }
  NodeId make(Operation operation, NodeId a, NodeId b = 0) { return tree_.make(operation, a, b); }

  // The depth of nested gates is limited to the depth of clamp, min and max of a few operands. Without a limit, moving
  // gates out of gates could make the expression arbitrarily large.
  bool is_gate(NodeId id, int depth = 4) const {
    const Node& node = tree_[id];
    if (node.operation != Operation::select || depth == 0) return false;
    return tree_.is_number(node.b, 0) || tree_.is_number(node.c, 0) || is_gate(node.b, depth - 1) ||
           is_gate(node.c, depth - 1);
  }

  // A product with 0 * infinity = 0, as in a limit.
  NodeId chain(NodeId a, NodeId b) {
    if (tree_.is_number(a, 0) || tree_.is_number(b, 0)) return zero();
    if (!is_gate(a)) std::swap(a, b);
    if (!is_gate(a)) return tree_.multiply(a, b);
    // Gates have common branches. Without a table of visited nodes, the recursion would take exponential time.
    const auto known = chained_.find({a, b});
    if (known != chained_.end()) return known->second;
    const Node gate = tree_[a];
    const NodeId result = tree_.select(gate.a, chain(gate.b, b), chain(gate.c, b));
    chained_.emplace(std::pair(a, b), result);
    return result;
  }

  NodeId chain_divide(NodeId a, NodeId b) {
    if (tree_.is_number(a, 0)) return a;
    return is_gate(a) ? chain(a, tree_.divide(number(1), b)) : tree_.divide(a, b);
  }

  // `factor` is multiplied by a term that vanishes where the other factor becomes constant. A bound is useful only for
  // a factor that is finite on one side. If both sides are infinite, the product has no value on one of them.
  NodeId held_finite(NodeId factor) {
    constexpr double largest = std::numeric_limits<float>::max();
    const Range range = tree_.range(factor);
    const bool low = std::isinf(range.low), high = std::isinf(range.high);
    if (high && !low) return tree_.minimum(factor, number(largest), Edge::through);
    if (low && !high) return tree_.maximum(factor, number(-largest), Edge::through);
    return factor;
  }

  // a * b' as a part of (a * b)'.
  NodeId product_part(NodeId product, NodeId a, NodeId b) {
    const NodeId slope = derivatives_[b];
    if (tree_.is_number(slope, 0)) return slope;
    const Node& factor = tree_[b];
    if (factor.operation == Operation::sigmoid) {
      const NodeId relative = tree_.subtract(number(1), b);
      return chain(held_finite(product), chain(relative, derivatives_[factor.a]));
    }
    if (factor.operation == Operation::exp) return chain(product, derivatives_[factor.a]);
    if (is_gate(slope) || !tree_.is_bounded(b)) return chain(a, slope);
    return chain(held_finite(a), slope);
  }

  NodeId product(NodeId id) {
    const Node node = tree_[id];
    if (node.a == node.b) return chain(tree_.multiply(number(2), node.a), derivatives_[node.a]);
    return tree_.add(product_part(id, node.b, node.a), product_part(id, node.a, node.b));
  }

  NodeId quotient(NodeId id) {
    const Node node = tree_[id];
    const NodeId above = derivatives_[node.a];
    const NodeId below = chain(id, derivatives_[node.b]);
    if (tree_.is_number(below, 0)) return chain_divide(above, node.b);
    return chain_divide(tree_.subtract(above, below), node.b);
  }

  NodeId power(NodeId id) {
    const Node node = tree_[id];
    const NodeId lower = make(Operation::power, node.a, tree_.subtract(node.b, number(1)));
    const NodeId by_base = chain(tree_.multiply(node.b, lower), derivatives_[node.a]);
    const NodeId by_exponent = derivatives_[node.b];
    if (tree_.is_number(by_exponent, 0)) return by_base;
    return tree_.add(by_base, chain(tree_.multiply(id, make(Operation::log, node.a)), by_exponent));
  }

  // maximum, and minimum with the opposite comparison.
  NodeId extremum(const Node& node) {
    const NodeId x = derivatives_[node.a], bound = derivatives_[node.b];
    const bool is_maximum = node.operation == Operation::maximum;
    const NodeId small = is_maximum ? node.a : node.b, large = is_maximum ? node.b : node.a;
    const NodeId inside = tree_.select(make(Operation::less, small, large), bound, x);
    switch (node.edge) {
      case Edge::through:
        return x;
      case Edge::one:
        return inside;
      case Edge::zero:
        return tree_.select(make(Operation::less_equal, small, large), bound, x);
      case Edge::half:
        break;
    }
    const NodeId both = chain(number(0.5), tree_.add(x, bound));
    return tree_.select(make(Operation::equal, small, large), both, inside);
  }

  // sign(a) is 0 at the kink. Every product with it must also be 0, so it is a gate.
  NodeId absolute(const Node& node) {
    const NodeId slope = chain(make(Operation::sign, node.a), derivatives_[node.a]);
    return tree_.select(make(Operation::equal, node.a, zero()), zero(), slope);
  }

  NodeId rule(NodeId id) {
    const Node node = tree_[id];
    const NodeId slope = derivatives_[node.a];  // of the first operand, if the operation has one
    switch (node.operation) {
      case Operation::constant:
      case Operation::score:
      case Operation::input:
      case Operation::sign:
      case Operation::floor:
      case Operation::floor_divide:
      case Operation::less:
      case Operation::less_equal:
      case Operation::equal:
        return zero();
      case Operation::add:
        return tree_.add(slope, derivatives_[node.b]);
      case Operation::subtract:
        return tree_.subtract(slope, derivatives_[node.b]);
      case Operation::multiply:
        return product(id);
      case Operation::divide:
        return quotient(id);
      case Operation::power:
        return power(id);
      case Operation::negate:
        return tree_.negate(slope);
      case Operation::absolute:
        return absolute(node);
      case Operation::minimum:
      case Operation::maximum:
        return extremum(node);
      case Operation::select:
        return tree_.select(node.a, derivatives_[node.b], derivatives_[node.c]);
      case Operation::sqrt:
        return chain(tree_.multiply(number(0.5), make(Operation::rsqrt, node.a)), slope);
      case Operation::rsqrt:
        return chain(tree_.multiply(number(-0.5), tree_.multiply(id, tree_.multiply(id, id))), slope);
      case Operation::exp:
        return chain(id, slope);
      case Operation::exp2:
        return chain(tree_.multiply(number(std::numbers::ln2), id), slope);
      case Operation::expm1:
        return chain(tree_.add(id, number(1)), slope);
      case Operation::log:
        return chain_divide(slope, node.a);
      case Operation::log2:
        return chain_divide(chain(number(std::numbers::log2e), slope), node.a);
      case Operation::log1p:
        return chain_divide(slope, tree_.add(number(1), node.a));
      case Operation::tanh:
        return chain(tree_.subtract(number(1), tree_.multiply(id, id)), slope);
      case Operation::sigmoid:
        return chain(tree_.multiply(id, tree_.subtract(number(1), id)), slope);
      case Operation::erf: {
        const NodeId density = make(Operation::exp, tree_.negate(tree_.multiply(node.a, node.a)));
        return chain(density, chain(number(2 * std::numbers::inv_sqrtpi), slope));
      }
      case Operation::softplus:
        return chain(make(Operation::sigmoid, node.a), slope);
      case Operation::sin:
        return chain(make(Operation::cos, node.a), slope);
      case Operation::cos:
        return chain(tree_.negate(make(Operation::sin, node.a)), slope);
    }
    return zero();
  }

  Tree& tree_;
  NodeId variable_;
  std::vector<NodeId> derivatives_;
  std::map<std::pair<NodeId, NodeId>, NodeId> chained_;
};

}  // namespace

NodeId differentiate(Tree& tree, NodeId root, NodeId variable) { return Differentiator(tree, variable).run(root); }

}  // namespace gdpa::activation
