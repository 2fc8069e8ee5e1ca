// See factors.h.
#include "expression/rewrite/factors.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "expression/lower.h"

namespace gdpa::activation {

namespace {

/// Whether two numbers are equal except for the roundings of a root and its powers.
bool is_about(double x, double y) { return std::fabs(x - y) <= 1e-12 * std::fabs(y); }

/// Returns 1 or -1 if x is equal to it except for roundings, because a factor of 1 or -1 needs no multiplication.
/// Returns x otherwise.
double whole_if_about(double x) { return is_about(std::fabs(x), 1) ? std::copysign(1, x) : x; }

/// Whether the number and its powers are normal numbers of fp32.
bool is_moderate(double x) { return std::fabs(x) > 1e-3 && std::fabs(x) < 1e3; }

bool is_possible(ValueFactor kind, double factor) {
  constexpr double most_in_fp16 = 4;  // two bits less of numbers below 6.1e-5
  if (kind == ValueFactor::suits_bfloat16) return is_moderate(factor);
  return kind == ValueFactor::suits_fp16 ? std::fabs(factor) >= 1 && std::fabs(factor) <= most_in_fp16 : factor == 1;
}

/// Whether the constants of the node can absorb a factor without an additional instruction: c x, c0 + c1 y,
/// y (c0 + c1 z) and so on.
bool takes_factor(const Tree& tree, NodeId id) {
  const Node& node = tree[id];
  if (tree.is_term(id)) return true;
  if (node.operation == Operation::negate) return takes_factor(tree, node.a);
  if (node.operation == Operation::multiply) return takes_factor(tree, node.a) || takes_factor(tree, node.b);
  if (!is_sum(node.operation)) return false;
  if (tree.is_number(node.a) || tree.is_number(node.b)) return true;
  return takes_factor(tree, node.a) && takes_factor(tree, node.b);
}

/// Rebuilds an expression in terms of x = factor * s. Every node is represented as a number times a node. The product
/// is formed only for operations other than products, sums of terms with equal factors, bounds and signs.
class Factoring {
 public:
  struct Rules {
    /// c0 + c x becomes c (c0 / c + x). If x is a product, x and the sum are then one instruction, and another
    /// operation may absorb c.
    bool pulls = false;
    /// A factor a of the head times y (c0 + c x) becomes y (a c0 + a c x), where a c0 and a c are computed once for a
    /// head.
    bool distributes = false;
    /// y (c - c t) becomes c (y - y t), which is one instruction. Other steps may then have to compute 1 - t
    /// themselves.
    bool subtracts = false;
    /// The second root lacks 1 if it is a sum with a number.
    bool omits_one = false;
  };

  Factoring(const Tree& from, double factor, const Rules& rules, const HeadInputs& head)
      : from_(from), factor_(factor), rules_(rules), head_(head) {}

  FactoredProgram run(const std::vector<NodeId>& roots, ValueFactor value_factor) {
    terms_.resize(from_.size());
    for (const NodeId id : from_.nodes_of(roots)) terms_[id] = rule(from_[id]);
    FactoredProgram result;
    result.score_factor = factor_;
    result.takes_scale = head_.any();
    Term value = terms_[roots[0]];
    if (is_possible(value_factor, whole_if_about(value.number))) {
      result.value_factor = whole_if_about(value.number);
      value.number = 1;
    }
    // bfloat16 has the range of fp32, so no factor is too large or too small.
    if (value_factor == ValueFactor::suits_bfloat16 && value.head != none) {
      result.head_factor = lower(to_, {value.head}, "");
      value.head = none;
    }
    roots_.push_back(whole(value));
    for (std::size_t other = 0; other + 1 < roots.size(); ++other)
      add_other_root(other, terms_[roots[other + 1]], result);
    result.program = lower(to_, roots_, "");
    return result;
  }

  const Tree& tree() const { return to_; }
  const std::vector<NodeId>& roots() const { return roots_; }

 private:
  static constexpr NodeId none = 0;   ///< no factor of the head; 0 is the score
  using Nodes = std::vector<NodeId>;  ///< in order

  struct Term {
    double number = 1;
    NodeId node = 0;
    NodeId head = none;  ///< a product of numbers of the head
  };

  /// Adds a root after the first one, and its factor if it may have one.
  void add_other_root(std::size_t other, Term root, FactoredProgram& result) {
    const bool may_have_factor = other < head_.take_factors.size() && head_.take_factors[other];
    const bool takes_factor = may_have_factor && (root.head != none || is_moderate(root.number));
    if (takes_factor && rules_.omits_one && other == 0) result.lacks_one = take_one(root);
    roots_.push_back(takes_factor ? root.node : whole(root));
    result.other_factors.emplace_back();
    if (takes_factor) result.other_factors.back() = lower(to_, {whole({root.number, to_.number(1), root.head})}, "");
  }

  /// A number plus terms.
  struct FlatSum {
    double number = 0;
    std::vector<Term> terms;
  };

  void add_to(FlatSum& all, double factor, NodeId id) const {
    const Node& node = to_[id];
    if (to_.is_number(id)) {
      all.number += factor * node.number;
    } else if (is_sum(node.operation)) {
      add_to(all, factor, node.a);
      add_to(all, node.operation == Operation::add ? factor : -factor, node.b);
    } else if (node.operation == Operation::negate) {
      add_to(all, -factor, node.a);
    } else if (to_.is_term(id)) {
      all.terms.push_back({factor * to_[node.a].number, node.b});
    } else {
      all.terms.push_back({factor, id});
    }
  }

  /// Changes a term with the node c + r into a term with c in its number and the node r / c. Returns whether the node
  /// is such a sum.
  bool take_one(Term& term) {
    FlatSum all;
    add_to(all, 1, term.node);
    if (all.terms.empty() || !is_moderate(all.number)) return false;
    Term rest = all.terms.front();
    for (std::size_t i = 1; i < all.terms.size(); ++i) rest = sum(rest, all.terms[i]);
    rest.number /= all.number;
    term.number *= all.number;
    term.node = whole(rest);
    return true;
  }

  /// A sum of two terms.
  struct Sum {
    Term result;
    Term a;
    Term b;
  };

  NodeId whole(const Term& term) {
    const double number = whole_if_about(term.number);
    if (term.head == none) return number == 1 ? term.node : scaled(to_, number, term.node);
    const NodeId factor = number == 1 ? term.head : scaled(to_, number, term.head);
    if (to_.is_number(term.node)) return scaled(to_, to_[term.node].number, factor);
    if (rules_.distributes && takes_factor(to_, term.node)) return times_head(factor, term.node);
    return to_.multiply(factor, term.node);
  }

  /// Whether the node is c0 + x.
  bool is_number_and_more(NodeId id) const {
    const Node& node = to_[id];
    return is_sum(node.operation) && to_.is_number(node.a);
  }

  /// factor * x for a node that takes it: factor * (c0 + c x) is factor c0 + factor c * x.
  NodeId times_head(NodeId factor, NodeId id) {
    const Node node = to_[id];
    if (to_.is_number(id)) return scaled(to_, node.number, factor);
    if (to_.is_term(id)) return to_.multiply(scaled(to_, to_[node.a].number, factor), node.b);
    if (node.operation == Operation::multiply) {
      return takes_factor(to_, node.b) ? to_.multiply(node.a, times_head(factor, node.b))
                                       : to_.multiply(times_head(factor, node.a), node.b);
    }
    if (is_sum(node.operation)) {
      return to_.make(node.operation, times_head(factor, node.a), times_head(factor, node.b));
    }
    return to_.multiply(factor, id);
  }

  /// The product of two factors of the head. Equal products are one node: they have their numbers in one order.
  NodeId product_of_heads(NodeId a, NodeId b) { return product_of_heads(joined(numbers_of(a), numbers_of(b))); }

  NodeId product_of_heads(const Nodes& numbers) {
    NodeId product = none;
    for (const NodeId number : numbers) product = product == none ? number : to_.multiply(product, number);
    if (numbers.size() > 1) heads_.insert_or_assign(product, numbers);
    return product;
  }

  /// The numbers of a head whose product is a factor, in order.
  Nodes numbers_of(NodeId head) const {
    if (head == none) return {};
    const auto found = heads_.find(head);
    return found == heads_.end() ? Nodes{head} : found->second;
  }

  static Nodes joined(const Nodes& a, const Nodes& b) {
    Nodes all;
    std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(all));
    return all;
  }

  /// The elements of `all` that are not in `some`.
  static Nodes without(const Nodes& all, const Nodes& some) {
    Nodes rest;
    std::set_difference(all.begin(), all.end(), some.begin(), some.end(), std::back_inserter(rest));
    return rest;
  }

  NodeId input(std::size_t index) {
    return to_.make({.operation = Operation::input, .number = static_cast<double>(index)});
  }
  NodeId whole(NodeId id) { return whole(terms_[id]); }

  Term rule(Node node) {
    switch (node.operation) {
      case Operation::score:
        return {1 / factor_, to_.score(), head_.any() ? input(head_.scale) : none};
      case Operation::constant:
        return {1, to_.number(node.number)};
      case Operation::input:
        if (head_.any() && head_.are_of_head[static_cast<std::size_t>(node.number)]) {
          return {1, to_.number(1), to_.make(node)};
        }
        return {1, to_.make(node)};
      case Operation::negate:
        return {-terms_[node.a].number, terms_[node.a].node, terms_[node.a].head};
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
    for_each_operand(node, [&](NodeId& operand) { operand = whole(operand); });
    return {1, to_.make(node)};
  }

  Term product(Term a, Term b) {
    if (rules_.distributes && (is_gradient(a.node) || is_gradient(b.node))) {
      // dP (x + y) is dP x + dP y, and other results may use the same products.
      const Term& factor = is_gradient(a.node) ? a : b;
      const Term& other = is_gradient(a.node) ? b : a;
      const auto sum = sums_.find(other.node);
      if (sum != sums_.end() && sum->second.result.head == other.head &&
          is_about(sum->second.result.number, other.number)) {
        const Sum terms = sum->second;
        return sum_of(product(factor, terms.a), product(factor, terms.b));
      }
    }
    const NodeId head = product_of_heads(a.head, b.head);
    if (to_.is_number(b.node)) std::swap(a, b);
    if (to_.is_number(a.node)) return {to_[a.node].number * a.number * b.number, b.node, head};
    const Term product = head_.any() ? shared_product(a.node, b.node) : product_of(a.node, b.node);
    return {a.number * b.number * product.number, product.node, head};
  }

  bool is_gradient(NodeId id) const {
    const Node& node = to_[id];
    return head_.any() && node.operation == Operation::input && static_cast<std::size_t>(node.number) == head_.gradient;
  }

  Term product_of(NodeId a, NodeId b) {
    if (is_one_and_more(a) || (!is_one_and_more(b) && is_one_and_less(a))) std::swap(a, b);
    const bool is_more = is_one_and_more(b);
    if (!is_more && !is_one_and_less(b)) return {1, to_.multiply(a, b)};
    // y (c + c t) = c (y + y t): one instruction.
    const Node sum = to_[b];
    const NodeId product = to_.multiply(a, to_.without_factor(sum.b));
    return {to_[sum.a].number, is_more ? to_.add(a, product) : to_.subtract(a, product)};
  }

  /// The factors of a product: their product is `number` times the node.
  struct Factors {
    double number = 1;
    Nodes nodes;
  };

  Factors factors_of(NodeId id) const {
    const auto found = products_.find(id);
    return found == products_.end() ? Factors{1, {id}} : found->second;
  }

  /// Returns a product of two nodes. If a known product has all or all but one of its factors, the result is made of
  /// it: the derivatives with respect to numbers of the head are products of the score and of factors of f.
  Term shared_product(NodeId a, NodeId b) {
    const Factors of_a = factors_of(a), of_b = factors_of(b);
    Factors of_both{of_a.number * of_b.number, joined(of_a.nodes, of_b.nodes)};
    double number = 1;  // a b is this number times the product that is made
    bool is_found = false;
    for (const auto& [known, factors] : products_) {
      const Nodes rest = without(of_both.nodes, factors.nodes);
      if (rest.size() + factors.nodes.size() != of_both.nodes.size() || rest.size() > 1) continue;
      if (rest.empty()) return {factors.number / of_both.number, known};
      // A product without dP may have no other reader.
      if (is_found && is_gradient(rest.front())) continue;
      is_found = true;
      number = factors.number / of_both.number;
      a = known;
      b = rest.front();
    }
    const Term product = product_of(a, b);
    of_both.number *= number * product.number;
    products_.insert({product.node, of_both});
    return {number * product.number, product.node};
  }

  /// Whether the node is c + c t.
  bool is_one_and_more(NodeId id) const {
    const Node& node = to_[id];
    if (node.operation != Operation::add || !to_.is_number(node.a)) return false;
    const double number = to_[node.a].number;
    return is_about(to_.factor_of(node.b), number);
  }

  /// Whether the node is c - c t, if the rules use this form.
  bool is_one_and_less(NodeId id) const {
    if (!rules_.subtracts || !is_number_and_more(id)) return false;
    const Node& node = to_[id];
    const double number = to_.factor_of(node.b);
    return is_about(node.operation == Operation::subtract ? number : -number, to_[node.a].number);
  }

  Term sum(const Node& node) {
    Term b = terms_[node.b];
    if (node.operation == Operation::subtract) b.number = -b.number;
    return sum_of(terms_[node.a], b);
  }

  Term sum_of(const Term& a, const Term& b) {
    const Term result = sum_with_heads(a, b);
    if (rules_.distributes) sums_.insert_or_assign(result.node, Sum{result, a, b});
    return result;
  }

  Term sum_with_heads(Term a, Term b) {
    // a x + a b y is a (x + b y).
    const Nodes of_a = numbers_of(a.head), of_b = numbers_of(b.head);
    Nodes of_both;
    std::set_intersection(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), std::back_inserter(of_both));
    const NodeId head = product_of_heads(of_both);
    if (a.head != b.head) {
      a.head = product_of_heads(without(of_a, of_both));
      b.head = product_of_heads(without(of_b, of_both));
      if (a.head != none) std::swap(a, b);
      if (a.head != none || !is_moderate(a.number)) return {1, to_.add(whole(a), whole(b)), head};
      // c x + d b y is c (x + d / c b y): the product of d / c and b is computed once for a head.
      const double number = std::exchange(a.number, 1);
      b.number /= number;
      return {number, to_.add(whole(a), whole(b)), head};
    }
    a.head = b.head = none;
    Term result = sum(a, b);
    result.head = head;
    return result;
  }

  /// The sum of two terms without factors of the head.
  Term sum(Term a, Term b) {
    if (to_.is_number(b.node)) std::swap(a, b);
    if (rules_.pulls && to_.is_number(a.node) && !to_.is_number(b.node)) {
      const double number = to_[a.node].number * a.number / b.number;
      if (is_moderate(number)) return {b.number, number_and(number, b.node)};
    }
    if (head_.any() && to_.is_number(a.node) && is_number_and_more(b.node)) {
      // 1 - (c0 + c x) is (1 - c0) - c x, which does not wait for c0 + c x.
      const Node of_b = to_[b.node];
      const double sign = of_b.operation == Operation::subtract ? -b.number : b.number;
      const double number = to_[a.node].number * a.number + b.number * to_[of_b.a].number;
      if (is_moderate(number)) return {1, to_.add(to_.number(number), scaled(to_, sign, of_b.b))};
    }
    if (is_about(a.number, b.number)) return {a.number, to_.add(a.node, b.node)};
    if (is_about(a.number, -b.number)) return {a.number, to_.subtract(a.node, b.node)};
    if (is_multiple_of(b.node, a.node)) std::swap(a, b);
    if (is_multiple_of(a.node, b.node) && a.number * b.number > 0) {
      // c0 y + c y z is y (c0 + c z).
      const Node& multiple = to_[a.node];
      const NodeId rest = multiple.a == b.node ? multiple.b : multiple.a;
      return {1, to_.multiply(b.node, to_.add(to_.number(b.number), whole({a.number, rest})))};
    }
    return {1, to_.add(whole(a), whole(b))};
  }

  /// number + x, where x may be such a sum itself: 1 - (1 + t) / 2 is (1 - t) / 2.
  NodeId number_and(double number, NodeId x) {
    const Node node = to_[x];
    if (node.operation != Operation::add || !to_.is_number(node.a)) return to_.add(to_.number(number), x);
    const double together = number + to_[node.a].number;
    return together == 0 ? node.b : to_.add(to_.number(together), node.b);
  }

  /// Whether the node is a product with the factor.
  bool is_multiple_of(NodeId id, NodeId factor) const {
    const Node& node = to_[id];
    return node.operation == Operation::multiply && (node.a == factor || node.b == factor);
  }

  /// The minimum or maximum of a term and a number. A negative factor exchanges minimum and maximum.
  Term bound(const Node& node) {
    Term a = terms_[node.a], b = terms_[node.b];
    const bool number_first = to_.is_number(a.node);
    const Term& term = number_first ? b : a;
    const Term& number = number_first ? a : b;
    if (a.head != none || b.head != none || !to_.is_number(number.node))
      return {1, to_.make(node.operation, whole(a), whole(b), 0, node.edge)};
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
  Rules rules_;
  const HeadInputs& head_;
  std::vector<Term> terms_;
  std::vector<NodeId> roots_;
  std::map<NodeId, Nodes> heads_;       ///< the numbers of each product of numbers of the head
  std::map<NodeId, Factors> products_;  ///< with numbers of a head: the factors of each product
  std::map<NodeId, Sum> sums_;          ///< if it distributes: the terms of each sum
};

/// Returns for each step whether it is the same for all scores of a head, so that it is computed once.
std::vector<bool> steps_of_head(const Program& program, const HeadInputs& head) {
  std::vector<bool> are_of_head;
  for (const Step& step : program.steps) {
    bool is_of_head = step.operation != Operation::score;
    if (step.is_input()) is_of_head = head.any() && (step.input() == head.scale || head.are_of_head[step.input()]);
    for_each_operand(step, [&](std::uint16_t operand) { is_of_head = is_of_head && are_of_head[operand]; });
    are_of_head.push_back(is_of_head);
  }
  return are_of_head;
}

/// An estimate of the number of instructions. A product that only one sum reads is part of that sum, a negation is part
/// of the operation that reads it, and a special function takes the time of four instructions.
int cost_of(const Program& program, const HeadInputs& head) {
  const std::vector<bool> are_of_head = steps_of_head(program, head);
  std::vector<int> readers(program.steps.size());
  for (const Step& step : program.steps) for_each_operand(step, [&](std::uint16_t operand) { ++readers[operand]; });
  for (const std::uint16_t result : program.results) ++readers[result];
  const auto joins = [&](std::uint16_t operand) {
    return program.steps[operand].operation == Operation::multiply && readers[operand] == 1;
  };
  int cost = 0;
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    if (are_of_head[i] || operand_count(step.operation) == 0 || step.operation == Operation::negate) continue;
    if (is_sum(step.operation)) {
      cost += joins(step.a) || joins(step.b) ? 0 : 1;  // the product's instruction
    } else {
      cost += step.operation == Operation::multiply || is_exact(step.operation) ? 1 : 4;
    }
  }
  return cost;
}

/// Returns the degree of each node that is a polynomial of the score. Bounds of polynomials count as polynomials.
std::vector<int> powers_of_score(const Tree& tree) {
  constexpr int highest = 16;
  std::vector<int> powers(tree.size());
  for (NodeId id = 0; id < tree.size(); ++id) {
    const Node& node = tree[id];
    const int a = powers[node.a], b = powers[node.b];
    if (node.operation == Operation::score) powers[id] = 1;
    if (node.operation == Operation::negate) powers[id] = a;
    if (node.operation == Operation::multiply) powers[id] = std::min(highest, a + b);
    if (is_sum(node.operation) || is_extremum(node.operation)) powers[id] = std::max(a, b);
  }
  return powers;
}

/// Adds the factors that turn a constant into 1: the n-th root of c for c x^n, the (n + 1)-th root for x (c0 + c x^n),
/// and the n-th root of c / c0 for c0 + c x^n. Also adds halves, for x times 1/2 + 1/2 tanh(x / 2).
void add_candidates(std::set<double>& factors, const Tree& tree, const std::vector<NodeId>& roots) {
  constexpr std::size_t most = 64;  // factors. A function with more constants is long with any factors
  const std::vector<int> powers = powers_of_score(tree);
  const auto take_root = [&](double number, int power) {
    const double factor = power == 1 ? std::fabs(number) : std::pow(std::fabs(number), 1.0 / power);
    if (is_moderate(factor)) factors.insert(factor);
  };
  for (const NodeId id : tree.nodes_of(roots)) {
    if (factors.size() >= most) break;
    const Node& node = tree[id];
    if (tree.is_term(id) && powers[node.b] > 0) {
      const double number = tree[node.a].number;
      take_root(number, powers[node.b]);
      take_root(number, powers[node.b] + 1);
      if (node.b == tree.score()) take_root(number / 2, 1);
    }
    if (node.operation == Operation::add && tree.is_number(node.a) && powers[node.b] > 0) {
      const double number = tree.factor_of(node.b);
      take_root(number / tree[node.a].number, powers[node.b]);
    }
  }
}

}  // namespace

NodeId scaled(Tree& tree, double factor, NodeId x) {
  const Node node = tree[x];
  if (node.operation == Operation::negate) return scaled(tree, -factor, node.a);
  if (node.operation == Operation::multiply && node.a == node.b && tree.is_term(node.a)) {
    const Node root = tree[node.a];
    const double c = tree[root.a].number;
    return tree.multiply(tree.number(whole_if_about(factor * c * c)), tree.multiply(root.b, root.b));
  }
  if (tree.is_term(x) && is_about(std::fabs(factor * tree[node.a].number), 1)) {
    return factor * tree[node.a].number > 0 ? node.b : tree.negate(node.b);
  }
  if (!takes_factor(tree, x) || tree.is_term(x)) return tree.multiply(tree.number(factor), x);
  if (is_sum(node.operation)) {
    return tree.make(node.operation, scaled(tree, factor, node.a), scaled(tree, factor, node.b));
  }
  return takes_factor(tree, node.b) ? tree.multiply(node.a, scaled(tree, factor, node.b))
                                    : tree.multiply(scaled(tree, factor, node.a), node.b);
}

FactoredProgram factor(const Tree& tree, const std::vector<NodeId>& roots, ValueFactor value_factor,
                       const HeadInputs& head) {
  FactoredProgram best{1, 1, lower(tree, roots, "")};
  if (head.any()) best = Factoring(tree, 1, {.subtracts = true}, head).run(roots, value_factor);
  Factoring gathering(tree, 1, {.pulls = true, .subtracts = head.any()}, head);
  gathering.run(roots, value_factor);
  std::set<double> score_factors = {1};
  // With factors of the head, the constants join these, and a factor of the score would be a product of its own.
  if (!head.any()) {
    score_factors.insert(0.5);
    add_candidates(score_factors, tree, roots);
    add_candidates(score_factors, gathering.tree(), gathering.roots());
  }
  int least = cost_of(best.program, head);
  const auto keep_cheaper = [&](double score_factor, const Factoring::Rules& rules) {
    FactoredProgram tried = Factoring(tree, score_factor, rules, head).run(roots, value_factor);
    const int cost = cost_of(tried.program, head);
    if (cost >= least) return;
    least = cost;
    best = std::move(tried);
  };
  for (const double score_factor : score_factors) {
    for (const bool pulls : {false, true}) {
      for (const bool chosen : {false, true}) {
        const Factoring::Rules rules = {
            .pulls = pulls, .distributes = chosen && head.any(), .subtracts = chosen || head.any()};
        keep_cheaper(score_factor, rules);
        if (head.may_lack_one) keep_cheaper(score_factor, {rules.pulls, rules.distributes, rules.subtracts, true});
      }
    }
  }
  return best;
}

}  // namespace gdpa::activation
