// Tree: expressions of the score as a directed graph with one node for equal subexpressions. Its constructors simplify.
// differentiate() and to_text() are in files of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "expression/input.h"
#include "expression/program.h"

namespace gdpa::activation {

/// The derivative of maximum and minimum if the first operand x equals its bound, or lies beyond it.
enum class Edge : std::uint8_t {
  half,     ///< min, max: a tie gives half to each operand
  zero,     ///< relu: a tie gives nothing to x
  one,      ///< clamp: a tie gives all to x
  through,  ///< guard: x' everywhere, also beyond the bound
};

using NodeId = std::uint32_t;

/// An operation on earlier nodes. A parsed name is a constant with a name and without a number, and a parsed read of a
/// tensor is an input with a name. bind() replaces both: a name by its number or by an input, and a read by an input. A
/// bound input has no name. Its number is its position in Tree::inputs().
struct Node {
  Operation operation = Operation::constant;
  Edge edge = Edge::half;  ///< for minimum and maximum
  NodeId a = 0;
  NodeId b = 0;
  NodeId c = 0;
  double number = 0;
  std::string parameter = {};
};

/// An input whose indices are nodes. The name is for texts.
struct TreeInput {
  Input::Kind kind = Input::Kind::number;
  std::size_t tensor = 0;
  Index index = Index::batch;
  std::vector<NodeId> indices = {};
  std::string name = {};
  unsigned row_axes = 0;  ///< Input::row_axes

  bool operator==(const TreeInput&) const = default;
};

/// The smallest and the largest possible value of a node, apart from NaN; infinite if unknown.
struct Range {
  double low;
  double high;
};

/// The nodes of any number of expressions. Operands always come before the nodes that read them, so that one pass in
/// the order of the ids visits an expression from its leaves to its root without recursion.
///
/// No simplification loses a NaN or an infinity that the expression as written gives for a finite score, and none
/// adds one: x - x, 0 * x and x / x stay. The last bit and the sign of a zero may change (x / 3 is x * (1 / 3)).
class Tree {
 public:
  Tree();

  NodeId score() const { return 0; }
  NodeId number(double value);
  NodeId parameter(const std::string& name);

  /// An element of the tensor with this name, which bind() binds.
  NodeId read(const std::string& name, std::vector<NodeId> indices);

  NodeId add(NodeId a, NodeId b);
  NodeId subtract(NodeId a, NodeId b);
  NodeId multiply(NodeId a, NodeId b);
  NodeId divide(NodeId a, NodeId b);
  /// a / b as written: not simplified to a product with 1 / b, which may be below the quotient.
  NodeId quotient(NodeId a, NodeId b);
  NodeId power(NodeId base, NodeId exponent);
  NodeId negate(NodeId a);
  NodeId minimum(NodeId a, NodeId b, Edge edge = Edge::half);
  NodeId maximum(NodeId a, NodeId b, Edge edge = Edge::half);
  NodeId select(NodeId condition, NodeId a, NodeId b);

  /// Any operation on earlier nodes, simplified.
  NodeId make(Operation operation, NodeId a, NodeId b = 0, NodeId c = 0, Edge edge = Edge::half);

  const Node& operator[](NodeId id) const { return nodes_[id]; }
  NodeId size() const { return static_cast<NodeId>(nodes_.size()); }
  bool is_number(NodeId id) const;
  bool is_number(NodeId id, double value) const;
  bool is_bounded(NodeId id) const;

  /// Whether the node is a term: a number times a node; and these two, which are 1 and the node itself for another
  /// node.
  bool is_term(NodeId id) const { return nodes_[id].operation == Operation::multiply && is_number(nodes_[id].a); }
  double factor_of(NodeId id) const { return is_term(id) ? nodes_[nodes_[id].a].number : 1; }
  NodeId without_factor(NodeId id) const { return is_term(id) ? nodes_[id].b : id; }

  Range range(NodeId id) const { return ranges_[id]; }

  /// Returns the nodes of the expressions, each after its operands.
  std::vector<NodeId> nodes_of(const std::vector<NodeId>& roots) const;

  /// Whether the expression reads the score.
  bool reads_score(NodeId root) const { return nodes_of({root}).front() == score(); }

  NodeId make(const Node& node);

  /// Rebuilds the expression from its leaves. `rule` returns the replacement of a node, which it gets with rewritten
  /// operands and with its id in the expression.
  NodeId rewrite(NodeId root, const std::function<NodeId(const Node&, NodeId)>& rule);

  /// Replaces each name by its number, by an input for a tensor of the call, or by a position or row. `of_call` has the
  /// names of the tensors in order. Every name must be one of these, and every tensor that is read must be in
  /// `of_call`.
  NodeId bind(NodeId root, const std::map<std::string, double>& numbers, const std::vector<std::string>& of_call);

  /// The query head, as an input that no name hides.
  NodeId head();

  /// The element of a bound tensor whose only index is q_row, which no name hides.
  NodeId element_of_query_row(std::size_t tensor, const std::string& name);

  /// Returns the expression for one query head, which is a number.
  NodeId at_head(NodeId root, int64_t head);

  /// The inputs that bind() has made, and the node of one of them.
  const std::vector<TreeInput>& inputs() const { return inputs_; }
  const TreeInput& input_of(const Node& node) const { return inputs_[static_cast<std::size_t>(node.number)]; }
  NodeId input_node(std::size_t index) const;

  /// The last step after differentiation. Integer and half-integer powers become products and roots, because a power
  /// has the shorter derivative. Gates without an effect are removed, because until then they keep infinities out of
  /// products.
  NodeId finish(NodeId root);

 private:
  NodeId intern(Node node);
  NodeId input(const TreeInput& input);
  NodeId position(Index index);
  NodeId fold(Operation operation, NodeId a, NodeId b = 0, NodeId c = 0, Edge edge = Edge::half);
  NodeId integer_power(NodeId base, int exponent);
  NodeId expanded_power(NodeId base, NodeId exponent);
  bool is_idle_gate(const Node& node) const;
  Range range_of(const Node& node) const;

  /// The number as its bits, which tell -0 from +0.
  using Key = std::tuple<Operation, Edge, NodeId, NodeId, NodeId, std::uint64_t, std::string>;
  static Key key_of(const Node& node);

  std::vector<Node> nodes_;
  std::vector<Range> ranges_;
  std::vector<TreeInput> inputs_;
  std::vector<std::vector<NodeId>> unbound_reads_;  ///< the indices
  std::map<Key, NodeId> ids_;
};

/// Returns d(root)/d(variable) as a node of the same tree, with the rules at kinks and ties that docs/functions.md
/// lists. The variable is the score or the node of an input.
NodeId differentiate(Tree& tree, NodeId root, NodeId variable);

/// Returns a text that parses back to the expression. A text longer than a screen is cut with "...", because shared
/// subexpressions are written at each use.
std::string to_text(const Tree& tree, NodeId root);

}  // namespace gdpa::activation
