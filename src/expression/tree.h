// Tree: expressions of the score as a directed graph with one node for equal subexpressions. Its constructors simplify.
// Other files handle texts (parser.h), derivatives (derivative.h) and the order of evaluation (lower.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
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
  Range range(NodeId id) const { return ranges_[id]; }

  /// Returns for each id up to root whether the expression reads it.
  std::vector<bool> reachable(const std::vector<NodeId>& roots) const;

  NodeId make(const Node& node);

  /// Rebuilds the expression from its leaves. `rule` returns the replacement of a node with rewritten operands.
  NodeId rewrite(NodeId root, const std::function<NodeId(const Node&)>& rule);

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
  bool is_scaled(NodeId id) const;  // a constant times a node
  Range range_of(const Node& node) const;

  struct Hash {
    std::size_t operator()(const Node& node) const;
  };
  struct Equal {
    bool operator()(const Node& x, const Node& y) const;
  };

  std::vector<Node> nodes_;
  std::vector<Range> ranges_;
  std::vector<TreeInput> inputs_;
  std::vector<std::vector<NodeId>> unbound_reads_;  ///< the indices
  std::unordered_map<Node, NodeId, Hash, Equal> ids_;
};

}  // namespace gdpa::activation
