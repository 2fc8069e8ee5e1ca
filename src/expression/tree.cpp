// The constructors of Tree: constant folding, and simplifications that do not change NaN and infinite results.
#include "expression/tree.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "gdpa/error.h"

namespace gdpa::activation {

namespace {

// A combined constant must be a normal number of fp32. Otherwise c1 * (c2 * x) could overflow although its parts do
// not.
bool is_ordinary(double value) { return std::fabs(value) >= 1e-30 && std::fabs(value) <= 1e30; }

// 0 * infinity is 0 here: a bound of a product, not a value.
double bound_product(double x, double y) { return x == 0 || y == 0 ? 0 : x * y; }

}  // namespace

Tree::Key Tree::key_of(const Node& node) {
  return {node.operation, node.edge, node.a, node.b, node.c, std::bit_cast<std::uint64_t>(node.number), node.parameter};
}

Tree::Tree() { intern({.operation = Operation::score}); }

NodeId Tree::intern(Node node) {
  constexpr NodeId most_nodes = 1 << 17;  // far more than a program with most_steps can need
  if (size() >= most_nodes) {
    throw Error(ErrorKind::value,
                "expected at most 4096 operations in the function and its derivative, but "
                "far more came; simplify the expression");
  }
  const auto [position, is_new] = ids_.try_emplace(key_of(node), size());
  if (is_new) {
    ranges_.push_back(range_of(node));
    nodes_.push_back(std::move(node));
  }
  return position->second;
}

NodeId Tree::number(double value) { return intern({.number = value}); }

NodeId Tree::parameter(const std::string& name) { return intern({.parameter = name}); }

bool Tree::is_number(NodeId id) const {
  return nodes_[id].operation == Operation::constant && nodes_[id].parameter.empty();
}

bool Tree::is_bounded(NodeId id) const { return std::isfinite(ranges_[id].low) && std::isfinite(ranges_[id].high); }

bool Tree::is_number(NodeId id, double value) const { return is_number(id) && nodes_[id].number == value; }

NodeId Tree::add(NodeId a, NodeId b) {
  if (is_number(a, 0)) return b;
  if (is_number(b, 0)) return a;
  if (nodes_[b].operation == Operation::negate) return subtract(a, nodes_[b].a);
  if (nodes_[a].operation == Operation::negate) return subtract(b, nodes_[a].a);
  // x + c1 * y + c2 * y is x + (c1 + c2) * y, one step less, where the signs agree and infinities cannot cancel.
  if (nodes_[a].operation != Operation::add && nodes_[b].operation == Operation::add) std::swap(a, b);
  if (is_term(b) && nodes_[a].operation == Operation::add && is_term(nodes_[a].b)) {
    const NodeId first = nodes_[a].b;
    const double c1 = nodes_[nodes_[first].a].number, c2 = nodes_[nodes_[b].a].number;
    if (nodes_[first].b == nodes_[b].b && c1 * c2 > 0 && is_ordinary(c1 + c2)) {
      return add(nodes_[a].a, multiply(number(c1 + c2), nodes_[b].b));
    }
  }
  return fold(Operation::add, a, b);
}

NodeId Tree::subtract(NodeId a, NodeId b) {
  if (is_number(b, 0)) return a;
  if (is_number(a, 0)) return negate(b);
  if (nodes_[b].operation == Operation::negate) return add(a, nodes_[b].a);
  return fold(Operation::subtract, a, b);
}

NodeId Tree::negate(NodeId a) {
  const Node node = nodes_[a];
  if (node.operation == Operation::negate) return node.a;
  if (node.operation == Operation::multiply && is_number(node.a))
    return multiply(number(-nodes_[node.a].number), node.b);
  return fold(Operation::negate, a);
}

NodeId Tree::multiply(NodeId a, NodeId b) {
  if (is_number(b) || (is_term(a) && !is_term(b))) std::swap(a, b);
  if (is_number(a, 1)) return b;
  if (is_number(a, -1) && !is_number(b)) return negate(b);
  if (nodes_[b].operation == Operation::negate) return negate(multiply(a, nodes_[b].a));
  if (nodes_[a].operation == Operation::negate) return negate(multiply(nodes_[a].a, b));
  if (is_term(b)) {
    const NodeId factor = nodes_[b].a, rest = nodes_[b].b;
    const double product = nodes_[a].number * nodes_[factor].number;
    if (is_number(a) && is_ordinary(product)) return multiply(number(product), rest);
    // x * (c * y) becomes c * (x * y) if x * y cannot overflow, because other terms may contain x * y.
    if (!is_number(a) && is_bounded(a) && is_bounded(rest)) return multiply(factor, multiply(a, rest));
  }
  return fold(Operation::multiply, a, b);
}

NodeId Tree::divide(NodeId a, NodeId b) {
  if (is_number(b) && !is_number(a) && is_ordinary(nodes_[b].number)) return multiply(number(1 / nodes_[b].number), a);
  if (nodes_[a].operation == Operation::negate) return negate(divide(nodes_[a].a, b));
  if (nodes_[b].operation == Operation::negate) return negate(divide(a, nodes_[b].a));
  return fold(Operation::divide, a, b);
}

NodeId Tree::quotient(NodeId a, NodeId b) { return fold(Operation::divide, a, b); }

NodeId Tree::power(NodeId base, NodeId exponent) {
  if (is_number(exponent, 1)) return base;
  if (is_number(exponent, 0)) return number(1);
  if (is_number(base, 2) && !is_number(exponent)) return fold(Operation::exp2, exponent);
  return fold(Operation::power, base, exponent);
}

NodeId Tree::minimum(NodeId a, NodeId b, Edge edge) {
  return is_number(b, infinity) || a == b ? a : fold(Operation::minimum, a, b, 0, edge);
}

NodeId Tree::maximum(NodeId a, NodeId b, Edge edge) {
  return is_number(b, -infinity) || a == b ? a : fold(Operation::maximum, a, b, 0, edge);
}

NodeId Tree::select(NodeId condition, NodeId a, NodeId b) {
  const Node test = nodes_[condition];
  if (is_number(test.a) && is_number(test.b)) {
    return apply(test.operation, nodes_[test.a].number, nodes_[test.b].number) != 0 ? a : b;
  }
  if (nodes_[a].operation == Operation::select && nodes_[a].a == condition) a = nodes_[a].b;
  if (nodes_[b].operation == Operation::select && nodes_[b].a == condition) b = nodes_[b].c;
  if (a == b) return a;
  return fold(Operation::select, condition, a, b);
}

NodeId Tree::fold(Operation operation, NodeId a, NodeId b, NodeId c, Edge edge) {
  Node node{.operation = operation, .edge = edge, .a = a, .b = b, .c = c};
  const int operands = operand_count(operation);
  if (!is_comparison(operation) && operands > 0 && operands < 3 && is_number(a) && (operands == 1 || is_number(b))) {
    return number(apply(operation, nodes_[a].number, nodes_[b].number));
  }
  // Products with the same operands in any order are one node, with a constant first. minimum and maximum change the
  // order of their operands only if the derivative at a tie is the same for both.
  if (commutes(operation) && edge == Edge::half) {
    const std::pair left(!is_number(a), a);
    const std::pair right(!is_number(b), b);
    if (right < left) std::swap(node.a, node.b);
  }
  return intern(node);
}

NodeId Tree::make(Operation operation, NodeId a, NodeId b, NodeId c, Edge edge) {
  switch (operation) {
    case Operation::add:
      return add(a, b);
    case Operation::subtract:
      return subtract(a, b);
    case Operation::multiply:
      return multiply(a, b);
    case Operation::divide:
      return divide(a, b);
    case Operation::power:
      return power(a, b);
    case Operation::negate:
      return negate(a);
    case Operation::minimum:
      return minimum(a, b, edge);
    case Operation::maximum:
      return maximum(a, b, edge);
    case Operation::select:
      return select(a, b, c);
    default:
      return fold(operation, a, b, c, edge);
  }
}

std::vector<NodeId> Tree::nodes_of(const std::vector<NodeId>& roots) const {
  std::vector<bool> wanted(nodes_.size());
  for (const NodeId root : roots) wanted[root] = true;
  std::vector<NodeId> nodes;
  for (NodeId id = size(); id-- > 0;) {
    if (!wanted[id]) continue;
    nodes.push_back(id);
    for_each_operand(nodes_[id], [&](NodeId operand) { wanted[operand] = true; });
  }
  std::ranges::reverse(nodes);
  return nodes;
}

NodeId Tree::rewrite(NodeId root, const std::function<NodeId(const Node&, NodeId)>& rule) {
  std::vector<NodeId> rewritten(root + 1);
  for (const NodeId id : nodes_of({root})) {
    Node node = nodes_[id];
    for_each_operand(node, [&](NodeId& operand) { operand = rewritten[operand]; });
    rewritten[id] = rule(node, id);
  }
  return rewritten[root];
}

NodeId Tree::make(const Node& node) {
  if (operand_count(node.operation) == 0) return intern(node);
  return make(node.operation, node.a, node.b, node.c, node.edge);
}

NodeId Tree::read(const std::string& name, std::vector<NodeId> indices) {
  unbound_reads_.push_back(std::move(indices));
  const auto number = static_cast<double>(unbound_reads_.size() - 1);
  return intern({.operation = Operation::input, .number = number, .parameter = name});
}

NodeId Tree::input(const TreeInput& input) {
  const auto known = std::find(inputs_.begin(), inputs_.end(), input);
  const auto index = static_cast<double>(known - inputs_.begin());
  if (known == inputs_.end()) inputs_.push_back(input);
  return intern({.operation = Operation::input, .number = index});
}

NodeId Tree::position(Index index) {
  return input(
      {.kind = Input::Kind::index, .index = index, .name = std::string(index_names[static_cast<std::size_t>(index)])});
}

NodeId Tree::head() { return position(Index::head); }

NodeId Tree::element_of_query_row(std::size_t tensor, const std::string& name) {
  return input(
      {.kind = Input::Kind::read, .tensor = tensor, .indices = {position(Index::query)}, .name = name, .row_axes = 1});
}

NodeId Tree::at_head(NodeId root, int64_t head) {
  return rewrite(root, [&](const Node& node, NodeId) {
    const bool is_head = node.operation == Operation::input && input_of(node).kind == Input::Kind::index &&
                         input_of(node).index == Index::head;
    return is_head ? number(static_cast<double>(head)) : make(node);
  });
}

NodeId Tree::input_node(std::size_t index) const {
  return ids_.at(key_of({.operation = Operation::input, .number = static_cast<double>(index)}));
}

NodeId Tree::bind(NodeId root, const std::map<std::string, double>& numbers, const std::vector<std::string>& of_call) {
  const auto row_of = [&](const Node& node) -> const Row* {
    const bool is_hidden = numbers.contains(node.parameter) || std::ranges::count(of_call, node.parameter) > 0;
    return is_hidden ? nullptr : find_row(node.parameter);
  };
  return rewrite(root, [&](const Node& node, NodeId) {
    if (node.parameter.empty()) return make(node);
    const auto of_this_call = std::find(of_call.begin(), of_call.end(), node.parameter);
    TreeInput bound{.tensor = static_cast<std::size_t>(of_this_call - of_call.begin()), .name = node.parameter};
    if (node.operation == Operation::input) {
      bound.kind = Input::Kind::read;
      const std::vector<NodeId> indices = unbound_reads_[static_cast<std::size_t>(node.number)];
      for (std::size_t axis = 0; axis < indices.size(); ++axis) {
        const Row* const row = row_of(nodes_[indices[axis]]);
        bound.indices.push_back(row != nullptr ? position(row->position) : bind(indices[axis], numbers, of_call));
        if (row != nullptr) bound.row_axes |= 1U << axis;
      }
    } else if (const auto given = numbers.find(node.parameter); given != numbers.end()) {
      return number(given->second);
    } else if (const Row* const row = row_of(node); row != nullptr) {
      return add(position(row->position), position(row->first));
    } else if (of_this_call == of_call.end()) {
      bound = {.kind = Input::Kind::index, .index = find_index(node.parameter).value(), .name = node.parameter};
    }
    return input(bound);
  });
}

NodeId Tree::finish(NodeId root) {
  return rewrite(root, [&](const Node& node, NodeId) {
    if (node.operation == Operation::power) return expanded_power(node.a, node.b);
    return is_idle_gate(node) ? node.c : make(node);
  });
}

// where(x <= 0, 0, c * relu(x)), where(x == 0, 0, c * sign(x)): the open branch is 0 where the gate closes.
bool Tree::is_idle_gate(const Node& node) const {
  if (node.operation != Operation::select || !is_number(node.b, 0)) return false;
  const Node& test = nodes_[node.a];
  const Node& inside = nodes_[without_factor(node.c)];
  if (test.operation == Operation::less_equal) {
    return inside.operation == Operation::maximum && inside.a == test.a && inside.b == test.b && is_number(test.b, 0);
  }
  if (test.operation != Operation::equal || inside.operation != Operation::sign) return false;
  return (test.a == inside.a && is_number(test.b, 0)) || (test.b == inside.a && is_number(test.a, 0));
}

NodeId Tree::integer_power(NodeId base, int exponent) {
  if (exponent == 0) return number(1);
  if (exponent % 2 == 1) return multiply(base, integer_power(base, exponent - 1));
  const NodeId half = integer_power(base, exponent / 2);
  return multiply(half, half);
}

NodeId Tree::expanded_power(NodeId base, NodeId exponent) {
  constexpr double longest = 16;  // for larger exponents, products are less accurate than pow and not faster
  if (!is_number(exponent) || is_number(base)) return power(base, exponent);
  const double value = nodes_[exponent].number;
  if (std::fabs(value) > longest || 2 * value != std::floor(2 * value)) return power(base, exponent);
  if (value == -0.5) return fold(Operation::rsqrt, base);
  const NodeId whole = integer_power(base, static_cast<int>(std::fabs(value)));
  const bool is_half = value != std::floor(value);
  const NodeId product = is_half ? multiply(whole, fold(Operation::sqrt, base)) : whole;
  return value < 0 ? divide(number(1), product) : product;
}

Range Tree::range_of(const Node& node) const {
  const Range a = ranges_.empty() ? Range{-infinity, infinity} : ranges_[node.a];
  const Range b = ranges_.empty() ? Range{-infinity, infinity} : ranges_[node.b];
  switch (node.operation) {
    case Operation::constant:
      return node.parameter.empty() ? Range{node.number, node.number} : Range{-infinity, infinity};
    case Operation::add:
      return {a.low + b.low, a.high + b.high};
    case Operation::subtract:
      return {a.low - b.high, a.high - b.low};
    case Operation::multiply: {
      const auto [low, high] = std::minmax({bound_product(a.low, b.low), bound_product(a.low, b.high),
                                            bound_product(a.high, b.low), bound_product(a.high, b.high)});
      return {low, high};
    }
    case Operation::negate:
      return {-a.high, -a.low};
    case Operation::minimum:
      return {std::min(a.low, b.low), std::min(a.high, b.high)};
    case Operation::maximum:
      return {std::max(a.low, b.low), std::max(a.high, b.high)};
    case Operation::select: {
      const Range c = ranges_[node.c];
      return {std::min(b.low, c.low), std::max(b.high, c.high)};
    }
    case Operation::floor:
      return {std::floor(a.low), std::floor(a.high)};
    case Operation::sigmoid:
      return {0, 1};
    case Operation::tanh:
    case Operation::erf:
    case Operation::sign:
      return {-1, 1};
    case Operation::absolute:
    case Operation::sqrt:
    case Operation::rsqrt:
    case Operation::exp:
    case Operation::exp2:
    case Operation::softplus:
      return {0, infinity};
    default:  // includes sine and cosine, which have no limit at infinity
      return {-infinity, infinity};
  }
}

}  // namespace gdpa::activation
