// Prints a tree as a text of the expression language.
#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "expression/lexer.h"
#include "expression/tree.h"

namespace gdpa::activation {

namespace {

// The precedence of operators, lowest first. An operand of lower precedence is written in parentheses.
enum class Binding { sum, product, sign, primary };

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
    switch (node.operation) {
      case Operation::constant:
        return node.parameter.empty() ? number(node.number, around) : append(node.parameter);
      case Operation::input:
        return input(tree_.input_of(node), depth);
      case Operation::score:
        return append("s");
      case Operation::add:
        return binary(node, " + ", Binding::sum, Binding::sum, around, depth);
      case Operation::subtract:
        return binary(node, " - ", Binding::sum, Binding::product, around, depth);
      case Operation::multiply:
        return binary(node, " * ", Binding::product, Binding::sign, around, depth);
      case Operation::divide:
        return binary(node, " / ", Binding::product, Binding::sign, around, depth);
      case Operation::floor_divide:
        return floor_divide(node, depth);
      case Operation::less:
        return binary(node, " < ", Binding::sum, Binding::sum, Binding::sum, depth);
      case Operation::less_equal:
        return binary(node, " <= ", Binding::sum, Binding::sum, Binding::sum, depth);
      case Operation::equal:
        return binary(node, " == ", Binding::sum, Binding::sum, Binding::sum, depth);
      case Operation::power:
        write(node.a, Binding::primary, depth + 1);
        append("^");
        return write(node.b, Binding::primary, depth + 1);
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

  void binary(const Node& node, std::string_view sign, Binding own, Binding right, Binding around, int depth) {
    open(own, around);
    write(node.a, own, depth + 1);
    append(sign);
    write(node.b, right, depth + 1);
    close(own, around);
  }

  void arguments(std::initializer_list<NodeId> nodes, int depth) {
    std::string_view before = "(";
    for (NodeId node : nodes) {
      append(before);
      write(node, Binding::sum, depth + 1);
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
    const bool is_relu = node.edge == Edge::zero;
    switch (is_relu ? 1 : operand_count(node.operation)) {
      case 1:
        return arguments({node.a}, depth);
      case 2:
        return arguments({node.a, node.b}, depth);
      default:
        return arguments({node.a, node.b, node.c}, depth);
    }
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
    switch (node.edge) {
      case Edge::zero:
        return "relu";
      case Edge::one:
        return "clamp";
      case Edge::through:
        return "guard";
      case Edge::half:
        break;
    }
    switch (node.operation) {
      case Operation::absolute:
        return "abs";
      case Operation::select:
        return "where";
      case Operation::minimum:
        return "min";
      case Operation::maximum:
        return "max";
      default:
        return operation_name(node.operation);
    }
  }

  const Tree& tree_;
  std::string text_;
};

}  // namespace

std::string to_text(const Tree& tree, NodeId root) { return Writer(tree).run(root); }

}  // namespace gdpa::activation
