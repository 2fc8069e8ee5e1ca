// Prints a tree as a text of the expression language.
#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "expression/parser.h"
#include "expression/tree.h"

namespace gdpa::activation {

namespace {

// The precedence of operators, lowest first. An operand of lower precedence is written in parentheses.
enum class Binding { comparison, sum, product, sign, power, primary };

struct Operator {
  Operation operation;
  std::string_view sign;
  Binding own, left, right;  ///< of the operation and of its operands
};
constexpr Operator operators[] = {{Operation::add, " + ", Binding::sum, Binding::sum, Binding::sum},
                                  {Operation::subtract, " - ", Binding::sum, Binding::sum, Binding::product},
                                  {Operation::multiply, " * ", Binding::product, Binding::product, Binding::sign},
                                  {Operation::divide, " / ", Binding::product, Binding::product, Binding::sign},
                                  {Operation::power, "^", Binding::power, Binding::primary, Binding::power},
                                  {Operation::less, " < ", Binding::comparison, Binding::sum, Binding::sum},
                                  {Operation::less_equal, " <= ", Binding::comparison, Binding::sum, Binding::sum},
                                  {Operation::equal, " == ", Binding::comparison, Binding::sum, Binding::sum}};

class Writer {
 public:
  explicit Writer(const Tree& tree) : tree_(tree) {}

  std::string run(NodeId root) {
    write(root, Binding::sum, 0);
    return std::move(text_);
  }

 private:
  static constexpr std::size_t longest = 4000;
  static constexpr int deepest = 400;

  void write(NodeId id, Binding around, int depth) {
    if (text_.size() > longest || depth > deepest) {
      if (text_.size() < 3 || text_.substr(text_.size() - 3) != "...") text_ += "...";
      return;
    }
    const Node& node = tree_[id];
    const auto* const binary_operator = std::ranges::find(operators, node.operation, &Operator::operation);
    if (binary_operator != std::end(operators)) return binary(node, *binary_operator, around, depth);
    switch (node.operation) {
      case Operation::constant:
        return node.parameter.empty() ? number(node.number, around) : append(node.parameter);
      case Operation::input:
        return input(tree_.input_of(node), depth);
      case Operation::score:
        return append("s");
      case Operation::floor_divide:
        return floor_divide(node, depth);
      case Operation::negate:
        open(Binding::sign, around);
        append("-");
        write(node.a, Binding::sign, depth + 1);
        return close(Binding::sign, around);
      default:
        return call(node, depth);
    }
  }

  void append(std::string_view part) { text_ += part; }
  void open(Binding own, Binding around) { append(own < around ? "(" : ""); }
  void close(Binding own, Binding around) { append(own < around ? ")" : ""); }

  void number(double value, Binding around) {
    const Binding own = value < 0 ? Binding::sign : Binding::primary;
    open(own, around);
    append(shortest(value));
    close(own, around);
  }

  void binary(const Node& node, const Operator& of, Binding around, int depth) {
    open(of.own, around);
    write(node.a, of.left, depth + 1);
    append(of.sign);
    write(node.b, of.right, depth + 1);
    close(of.own, around);
  }

  void arguments(std::initializer_list<NodeId> nodes, int depth) {
    std::string_view before = "(";
    for (NodeId node : nodes) {
      append(before);
      write(node, Binding::comparison, depth + 1);
      before = ", ";
    }
    append(")");
  }

  void input(const TreeInput& input, int depth) {
    append(input.name);
    if (input.kind != Input::Kind::read) return;
    std::string_view before = "[";
    for (std::size_t axis = 0; axis < input.indices.size(); ++axis) {
      append(before);
      before = ", ";
      if ((input.row_axes >> axis & 1U) == 0) {
        write(input.indices[axis], Binding::sum, depth + 1);
        continue;
      }
      const Index index = tree_.input_of(tree_[input.indices[axis]]).index;
      append(std::ranges::find(rows, index, &Row::position)->name);
    }
    append("]");
  }

  void floor_divide(const Node& node, int depth) {
    append("floor(");
    write(node.a, Binding::product, depth + 1);
    append(" / ");
    write(node.b, Binding::sign, depth + 1);
    append(")");
  }

  void call(const Node& node, int depth) {
    append(name(node));
    if (node.edge == Edge::one || node.edge == Edge::through) return between(node, depth);
    if (node.edge == Edge::zero || operand_count(node.operation) == 1) return arguments({node.a}, depth);
    operand_count(node.operation) == 2 ? arguments({node.a, node.b}, depth)
                                       : arguments({node.a, node.b, node.c}, depth);
  }

  // clamp and guard: a minimum, a maximum, or the minimum of a maximum.
  void between(const Node& node, int depth) {
    const bool has_high = node.operation == Operation::minimum;
    const Node& inner = has_high ? tree_[node.a] : node;
    const bool has_low = inner.operation == Operation::maximum && inner.edge == node.edge;
    append("(");
    write(has_low ? inner.a : node.a, Binding::sum, depth + 1);
    append(", ");
    has_low ? write(inner.b, Binding::sum, depth + 1) : append("-inf");
    append(", ");
    has_high ? write(node.b, Binding::sum, depth + 1) : append("inf");
    append(")");
  }

  static std::string_view name(const Node& node) {
    constexpr std::string_view of_edges[] = {"", "relu", "clamp", "guard"};
    if (node.edge != Edge::half) return of_edges[static_cast<std::size_t>(node.edge)];
    if (node.operation == Operation::absolute) return "abs";
    if (node.operation == Operation::select) return "where";
    if (node.operation == Operation::minimum) return "min";
    return node.operation == Operation::maximum ? "max" : operation_name(node.operation);
  }

  const Tree& tree_;
  std::string text_;
};

}  // namespace

std::string to_text(const Tree& tree, NodeId root) { return Writer(tree).run(root); }

}  // namespace gdpa::activation
