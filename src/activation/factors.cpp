// See factors.h.
#include "activation/factors.h"

#include <cmath>
#include <set>
#include <vector>

#include "activation/lower.h"

namespace gdpa::activation {

namespace {

/// A number can be taken into its constants without an instruction more: c x, c0 + c1 y, y (c0 + c1 z) and so on.
bool takes_factor(const Tree& tree, NodeId id) {
  const Node& node = tree[id];
  if (is_term(tree, id)) return true;
  if (node.operation == Operation::negate) return takes_factor(tree, node.a);
  if (node.operation == Operation::multiply) return takes_factor(tree, node.a) || takes_factor(tree, node.b);
  if (node.operation != Operation::add) return false;
  return (tree.is_number(node.a) || takes_factor(tree, node.a)) && takes_factor(tree, node.b);
}

/// An expression rebuilt in terms of x = factor * s. Every node is kept as a number times a node until something other
/// than a product, a sum of equals, a bound or a sign needs it whole.
class Factoring {
 public:
  Factoring(const Tree& from, double factor) : from_(from), factor_(factor) {}

  NodeId run(NodeId root) {
    const std::vector<bool> wanted = from_.reachable({root});
    terms_.resize(root + 1);
    for (NodeId id = 0; id <= root; ++id) {
      if (wanted[id]) terms_[id] = rule(from_[id]);
    }
    return whole(terms_[root]);
  }

  const Tree& tree() const { return to_; }

 private:
  struct Term {
    double number = 1;
    NodeId node = 0;
  };

  NodeId whole(const Term& term) { return term.number == 1 ? term.node : scaled(to_, term.number, term.node); }
  NodeId whole(NodeId id) { return whole(terms_[id]); }

  Term rule(const Node& node) {
    switch (node.operation) {
      case Operation::score:
        return {1 / factor_, to_.score()};
      case Operation::constant:
        return {1, to_.number(node.number)};
      case Operation::negate:
        return {-terms_[node.a].number, terms_[node.a].node};
      case Operation::multiply:
        return product(terms_[node.a], terms_[node.b]);
      case Operation::add:
      case Operation::subtract:
        return sum(node);
      case Operation::minimum:
      case Operation::maximum:
        return bound(node);
      default:
        break;
    }
    const int operands = operand_count(node.operation);
    const NodeId a = operands > 0 ? whole(node.a) : 0, b = operands > 1 ? whole(node.b) : 0;
    return {1, to_.make(node.operation, a, b, operands > 2 ? whole(node.c) : 0, node.edge)};
  }

  Term product(Term a, Term b) {
    if (to_.is_number(b.node)) std::swap(a, b);
    if (to_.is_number(a.node)) return {to_[a.node].number * a.number * b.number, b.node};
    if (is_one_and_more(a.node)) std::swap(a, b);
    if (is_one_and_more(b.node)) {
      // y (c + c t) = c (y + y t): one instruction.
      const Node sum = to_[b.node];
      const NodeId t = is_term(to_, sum.b) ? to_[sum.b].b : sum.b;
      return {a.number * b.number * to_[sum.a].number, to_.add(a.node, to_.multiply(a.node, t))};
    }
    return {a.number * b.number, to_.multiply(a.node, b.node)};
  }

  /// c + c t, of the same c.
  bool is_one_and_more(NodeId id) const {
    const Node& node = to_[id];
    if (node.operation != Operation::add || !to_.is_number(node.a)) return false;
    const double number = to_[node.a].number;
    return is_term(to_, node.b) ? to_.is_number(to_[node.b].a, number) : number == 1;
  }

  Term sum(const Node& node) {
    const Term a = terms_[node.a], b = terms_[node.b];
    if (a.number == b.number) return {a.number, to_.make(node.operation, a.node, b.node)};
    return {1, to_.make(node.operation, whole(a), whole(b))};
  }

  /// The minimum or maximum of a term and a number, whose sides a negative factor exchanges.
  Term bound(const Node& node) {
    Term a = terms_[node.a], b = terms_[node.b];
    const bool number_first = to_.is_number(a.node);
    const Term& term = number_first ? b : a;
    const Term& number = number_first ? a : b;
    if (!to_.is_number(number.node)) return {1, to_.make(node.operation, whole(a), whole(b), 0, node.edge)};
    const bool turns = term.number < 0;
    const Operation operation =
        turns == (node.operation == Operation::minimum) ? Operation::maximum : Operation::minimum;
    const NodeId limit = to_.number(to_[number.node].number * number.number / term.number);
    return {term.number, number_first ? to_.make(operation, limit, term.node, 0, node.edge)
                                      : to_.make(operation, term.node, limit, 0, node.edge)};
  }

  const Tree& from_;
  Tree to_;
  double factor_;
  std::vector<Term> terms_;
};

/// Instructions, roughly: a product that one sum alone reads is part of it, a sign is part of what reads it, and a
/// special function takes as long as four.
int cost_of(const Program& program) {
  std::vector<int> readers(program.steps.size());
  for (const Step& step : program.steps) {
    const int operands = operand_count(step.operation);
    if (operands > 0) ++readers[step.a];
    if (operands > 1) ++readers[step.b];
    if (operands > 2) ++readers[step.c];
  }
  for (const std::uint16_t result : program.results) ++readers[result];
  const auto joins = [&](std::uint16_t operand) {
    return program.steps[operand].operation == Operation::multiply && readers[operand] == 1;
  };
  int cost = 0;
  for (const Step& step : program.steps) {
    switch (step.operation) {
      case Operation::constant:
      case Operation::score:
      case Operation::negate:
        break;
      case Operation::add:
      case Operation::subtract:
        cost += joins(step.a) || joins(step.b) ? 0 : 1;  // the product's instruction
        break;
      case Operation::multiply:
      case Operation::absolute:
      case Operation::minimum:
      case Operation::maximum:
      case Operation::less:
      case Operation::less_equal:
      case Operation::equal:
      case Operation::select:
        cost += 1;
        break;
      default:
        cost += 4;
    }
  }
  return cost;
}

/// The numbers that multiply the score, and their halves: 1/2 + 1/2 tanh(x / 2) times x wants x / 2.
std::set<double> candidates(const Tree& tree, const std::vector<NodeId>& roots) {
  std::set<double> factors = {0.5};
  const std::vector<bool> wanted = tree.reachable(roots);
  for (NodeId id = 0; id < tree.size(); ++id) {
    if (!wanted[id] || !is_term(tree, id) || tree[id].b != tree.score()) continue;
    const double number = std::fabs(tree[tree[id].a].number);
    if (number > 1e-3 && number < 1e3) factors.insert({number, number / 2});  // its powers stay within fp32
  }
  return factors;
}

}  // namespace

bool is_term(const Tree& tree, NodeId id) {
  return tree[id].operation == Operation::multiply && tree.is_number(tree[id].a);
}

NodeId scaled(Tree& tree, double factor, NodeId x) {
  const Node node = tree[x];
  if (node.operation == Operation::negate) return scaled(tree, -factor, node.a);
  if (node.operation == Operation::multiply && node.a == node.b && is_term(tree, node.a)) {
    const Node root = tree[node.a];
    const double c = tree[root.a].number;
    return tree.multiply(tree.number(factor * c * c), tree.multiply(root.b, root.b));
  }
  if (!takes_factor(tree, x) || is_term(tree, x)) return tree.multiply(tree.number(factor), x);
  if (node.operation == Operation::add) return tree.add(scaled(tree, factor, node.a), scaled(tree, factor, node.b));
  return takes_factor(tree, node.b) ? tree.multiply(node.a, scaled(tree, factor, node.b))
                                    : tree.multiply(scaled(tree, factor, node.a), node.b);
}

FactoredPrograms factor(const Tree& tree, NodeId value, NodeId value_beside_derivative, NodeId derivative) {
  FactoredPrograms best{1, lower(tree, {value}, ""), lower(tree, {value_beside_derivative, derivative}, "")};
  int least = cost_of(best.value) + cost_of(best.value_and_derivative);
  for (const double score_factor : candidates(tree, {value, derivative})) {
    Factoring factoring(tree, score_factor);
    const NodeId f = factoring.run(value), beside = factoring.run(value_beside_derivative);
    const NodeId slope = factoring.run(derivative);
    FactoredPrograms tried{score_factor, lower(factoring.tree(), {f}, ""),
                           lower(factoring.tree(), {beside, slope}, "")};
    const int cost = cost_of(tried.value) + cost_of(tried.value_and_derivative);
    if (cost >= least) continue;
    least = cost;
    best = std::move(tried);
  }
  return best;
}

}  // namespace gdpa::activation
