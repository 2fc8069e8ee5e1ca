// See parser.h. A recursive descent parser. Each method parses the construct of its name, and its error states the
// expected input:
//
//     text        = expression { ";" expression } [ "with" name "=" number { "," name "=" number } ]
//     expression  = either [ ("<" | "<=" | ">" | ">=" | "==" | "!=") either ]
//     either      = both { "|" both }
//     both        = sum { "&" sum }
//     sum         = product { ("+" | "-") product }
//     product     = signed { ("*" | "/" | "//" | "%") signed }
//     signed      = ("-" | "+" | "~") signed | power
//     power       = primary [ ("^" | "**") signed ]
//     primary     = number | name | name "(" [ expression { "," expression } ] ")" | "(" expression ")"
//                   | name "[" expression { "," expression } "]"
//
// The precedence is that of Python. A comparison, a named mask, and "&", "|" and "~" of conditions, is a condition.
// Each construct checks that its operands are numbers or conditions.
#include "expression/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <optional>
#include <utility>
#include <vector>

#include "gdpa/activation.h"
#include "gdpa/error.h"

namespace gdpa::activation {

namespace {

constexpr std::size_t longest_text = 64 * 1024;
constexpr int deepest_nesting = 200;

using Arguments = std::vector<NodeId>;

/// A condition, as the function that selects one of two numbers by it. Combined conditions are then nested selections,
/// and need no operations of their own.
using Choice = std::function<NodeId(NodeId, NodeId)>;

/// A function of the language, apart from where().
struct Builtin {
  std::string_view name;
  std::size_t least;
  std::size_t most;
  std::function<NodeId(Tree&, const Arguments&)> build;
};

Builtin unary(Operation operation, std::string_view name) {
  return {name, 1, 1, [operation](Tree& tree, const Arguments& x) { return tree.make(operation, x[0]); }};
}

template <Operation operation>
NodeId fold(Tree& tree, const Arguments& x) {
  NodeId result = x[0];
  for (std::size_t i = 1; i < x.size(); ++i) result = tree.make(operation, result, x[i]);
  return result;
}

template <Edge edge>
NodeId between(Tree& tree, const Arguments& x) {
  return tree.minimum(tree.maximum(x[0], x[1], edge), x[2], edge);
}

/// floor(a / b) is one operation, because a product with 1 / b may be below the quotient.
NodeId floor(Tree& tree, const Arguments& x) {
  const Node& quotient = tree[x[0]];
  if (quotient.operation == Operation::divide) return tree.make(Operation::floor_divide, quotient.a, quotient.b);
  return tree.make(Operation::floor, x[0]);
}

NodeId relu(Tree& tree, const Arguments& x) { return tree.maximum(x[0], tree.number(0), Edge::zero); }

constexpr std::size_t any = std::numeric_limits<std::size_t>::max();

const std::vector<Builtin>& builtins() {
  static const std::vector<Builtin> table = [] {
    std::vector<Builtin> functions = {{"min", 2, any, fold<Operation::minimum>},
                                      {"max", 2, any, fold<Operation::maximum>},
                                      {"clamp", 3, 3, between<Edge::one>},
                                      {"guard", 3, 3, between<Edge::through>},
                                      unary(Operation::absolute, "abs"),
                                      unary(Operation::sign, "sign"),
                                      {"floor", 1, 1, floor}};
    for (const OperationInfo& info : operation_infos) {
      if (is_elementary(info.operation)) functions.push_back(unary(info.operation, info.name));
    }
    functions.push_back({"relu", 1, 1, relu});
    return functions;
  }();
  return table;
}

/// Its first argument is a condition.
constexpr std::string_view where = "where";

/// Returns the row of a table with this name, or a null pointer.
template <class Table>
auto find_name(const Table& table, std::string_view name) {
  const auto found = std::ranges::find_if(table, [&](const auto& row) { return row.name == name; });
  return found == std::end(table) ? nullptr : &*found;
}

const Builtin* find_builtin(std::string_view name) { return find_name(builtins(), name); }
const NamedActivation* find_activation(std::string_view name) { return find_name(named_activations(), name); }

/// A condition of the language with a name: a mask of docs/masks.md.
struct NamedMask {
  std::string_view name;
  std::size_t least;  ///< arguments
  std::size_t most;
};
constexpr NamedMask named_masks[] = {
    {"causal", 0, 0}, {"window", 2, 2}, {"prefix", 1, 1}, {"interval", 2, 2}, {"hstu", 2, 4}};

std::vector<std::string> function_names() {
  std::vector<std::string> names = {std::string(where)};
  for (const Builtin& function : builtins()) names.emplace_back(function.name);
  for (const NamedActivation& row : named_activations()) {
    if (find_builtin(row.name) == nullptr) names.push_back(row.name);
  }
  for (const NamedMask& mask : named_masks) names.emplace_back(mask.name);
  return names;
}

/// Returns the number of changed letters between two names (the Levenshtein distance).
std::size_t distance(std::string_view x, std::string_view y) {
  std::vector<std::size_t> row(y.size() + 1);
  for (std::size_t j = 0; j <= y.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= x.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= y.size(); ++j) {
      const std::size_t changed = diagonal + (x[i - 1] == y[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[y.size()];
}

/// Returns the name of the function with the fewest changed letters, or an empty text if the number of changed letters
/// is not below `limit` and below the length of `name`.
std::string nearest_function(std::string_view name, std::size_t limit) {
  std::string nearest;
  std::size_t best = std::min(limit, name.size());
  for (const std::string& candidate : function_names()) {
    const std::size_t changes = distance(name, candidate);
    if (changes < best) {
      best = changes;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string did_you_mean(const std::string& nearest) {
  return nearest.empty() ? "" : fmt::format("did you mean \"{}\"? ", nearest);
}

/// The name of the language for a name in other letters or of other libraries: GELU, SiLU, swish.
std::string usual_name(std::string_view name) {
  std::string lower(name);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower == "swish" ? "silu" : lower;
}

constexpr std::string_view softmax_fault = "softmax is no function of one score: it divides by a sum over the keys";
constexpr std::string_view softmax_advice =
    "use a function such as silu, or exp(s) and divide the output, or PyTorch's own attention";

/// The advice for a call of an unknown function: did you mean "gelu"? functions: ...
std::string suggestion(std::string_view name) {
  return did_you_mean(nearest_function(usual_name(name), 3)) + "functions: " + listed(function_names());
}

/// The advice for a word of Python that the language does not have, or an empty text.
std::string_view advice_for_word(std::string_view word) {
  if (word == "and") return "write & for and: (kv_idx <= q_idx) & (kv_idx < 100)";
  if (word == "or") return "write | for or: (kv_idx <= q_idx) | (kv_idx < 100)";
  if (word == "not") return "write ~ for not: ~(kv_idx <= q_idx)";
  if (word == "if" || word == "else") return "write where(condition, a, b) for a if condition else b";
  return "";
}

class Parser {
 public:
  /// Without a score, the text is a condition.
  Parser(Tree& tree, std::optional<NodeId> score, std::string_view text, int depth = 0)
      : tree_(tree), score_(score), text_(text), tokens_(tokenize(text)), depth_(depth) {}

  /// Everything but the tree.
  Parsed whole() {
    const bool is_empty = tokens_.size() == 1;
    if (is_empty && score_) {
      throw Error(ErrorKind::value,
                  "expected a name (gelu) or an expression in s (s * sigmoid(1.702 * s)), "
                  "but the text is empty");
    }
    if (is_empty) throw Error(ErrorKind::value, "expected a condition (kv_idx <= q_idx), but the text is empty");
    parsed_.root = score_ ? functions_of_heads() : condition(expression())(tree_.number(1), tree_.number(0));
    parsed_.contents.end = peek().position;
    // The clause "with" is no part of the canonical text, which is completed once parameters given elsewhere are known.
    parsed_.text = canonical_.text();
    if (peek().kind == Token::Kind::name && peek().text == "with") bindings();
    if (peek().kind != Token::Kind::end) unexpected("an operator or the end");
    return std::move(parsed_);
  }

 private:
  /// A number, or a condition if `choice` is given.
  struct Value {
    Token first;
    NodeId node = 0;
    Choice choice = {};
  };

  NodeId functions_of_heads() {
    std::vector<NodeId> of_heads = {function()};
    while (at(";")) {
      take();
      of_heads.push_back(function());
    }
    NodeId root = of_heads.back();
    for (std::size_t head = of_heads.size() - 1; head-- > 0;) {
      const NodeId is_head = compare("==", tree_.head(), tree_.number(static_cast<double>(head)));
      root = tree_.select(is_head, of_heads[head], root);
    }
    parsed_.functions = of_heads.size();
    return root;
  }

  const Token& peek(std::size_t ahead = 0) const { return tokens_[std::min(next_ + ahead, tokens_.size() - 1)]; }

  Token take(bool binary = false) {
    const Token token = peek();
    canonical_.append(token, binary);
    ++next_;
    return token;
  }

  static bool is_symbol(const Token& token, std::string_view symbol) {
    return token.kind == Token::Kind::symbol && token.text == symbol;
  }

  bool at(std::string_view symbol) const { return is_symbol(peek(), symbol); }

  [[noreturn]] void fail(const Token& token, std::string_view what, std::string_view advice = "") const {
    refuse_at(text_, token.position, what, advice);
  }

  [[noreturn]] void unexpected(std::string_view expected) const {
    const Token& token = peek();
    const std::string came = token.kind == Token::Kind::end ? "the text ends" : fmt::format("\"{}\" came", token.text);
    fail(token, fmt::format("expected {}, but {}", expected, came), advice_for_word(token.text));
  }

  void expect(std::string_view symbol) {
    if (!at(symbol)) unexpected(fmt::format("\"{}\"", symbol));
    take();
  }

  bool is_bare_name() const {
    return peek().kind == Token::Kind::name && find_activation(peek().text) != nullptr &&
           (peek(1).kind == Token::Kind::end || peek(1).text == "with" || peek(1).text == ";");
  }

  NodeId function() {
    return is_bare_name() ? activation(*find_activation(take().text), *score_) : expression_number();
  }

  // The expression of a named function is parsed with x instead of s.
  NodeId activation(const NamedActivation& row, NodeId x) {
    return Parser(tree_, x, row.expression, depth_ + 1).whole().root;
  }

  NodeId number(const Value& value) const {
    if (value.choice) {
      fail(value.first, "expected a number, but a comparison came",
           "a comparison is a condition: use it as the first argument of where(condition, a, b)");
    }
    return value.node;
  }

  /// An element of a tensor is a condition too. It holds if the element is not 0.
  Choice condition_or_none(const Value& value) {
    const bool is_read = !value.choice && tree_[value.node].operation == Operation::input;
    return is_read ? comparison("!=", value.node, tree_.number(0)) : value.choice;
  }

  Choice condition(const Value& value) {
    Choice choice = condition_or_none(value);
    if (!choice) {
      fail(value.first, "expected a condition, but a number came",
           score_ ? "compare it: where(s > 0, a, b)" : "compare it: (kv_idx <= q_idx) & (kv_idx < 100)");
    }
    return choice;
  }

  NodeId expression_number() { return number(expression()); }

  Value expression() {
    const Token first = peek();
    if (++depth_ > deepest_nesting) {
      fail(first, fmt::format("nested more than {} deep", deepest_nesting), "simplify the expression");
    }
    Value left = either();
    if (is_comparison(peek())) {
      const Token sign = take(true);
      const NodeId right = number(either());
      left = {first, 0, comparison(sign.text, number(left), right)};
      if (is_comparison(peek())) {
        fail(peek(), "comparisons cannot follow one another", "combine them: (a < s) & (s < b)");
      }
    }
    --depth_;
    return left;
  }

  Value either() { return combined("|", &Parser::both, any_of); }

  Value both() { return combined("&", &Parser::sum, all_of); }

  /// Operands with a sign between them, which `combine` makes one condition. One operand alone stays as it is.
  template <class Combine>
  Value combined(std::string_view sign, Value (Parser::*operand)(), Combine combine) {
    Value left = (this->*operand)();
    if (!at(sign)) return left;
    const auto part = [&](const Value& value) {
      Choice choice = condition_or_none(value);
      if (!choice) {
        fail(value.first, fmt::format("expected a condition as an operand of {}, but a number came", sign),
             "comparisons need parentheses: (q_idx < 3) & (kv_idx < 3)");
      }
      return choice;
    };
    std::vector<Choice> parts = {part(left)};
    while (at(sign)) {
      take(true);
      parts.push_back(part((this->*operand)()));
    }
    return {left.first, 0, combine(parts)};
  }

  static bool is_comparison(const Token& token) {
    return token.kind == Token::Kind::symbol && (token.text == "<" || token.text == "<=" || token.text == ">" ||
                                                 token.text == ">=" || token.text == "==" || token.text == "!=");
  }

  Choice comparison(std::string_view sign, NodeId a, NodeId b) {
    const NodeId test = compare(sign, a, b);
    if (sign == "!=") return [this, test](NodeId x, NodeId y) { return tree_.select(test, y, x); };
    return [this, test](NodeId x, NodeId y) { return tree_.select(test, x, y); };
  }

  // != has the node of ==, and its choice exchanges the branches.
  NodeId compare(std::string_view sign, NodeId a, NodeId b) {
    if (sign == "<") return tree_.make(Operation::less, a, b);
    if (sign == "<=") return tree_.make(Operation::less_equal, a, b);
    if (sign == ">") return tree_.make(Operation::less, b, a);
    if (sign == ">=") return tree_.make(Operation::less_equal, b, a);
    return tree_.make(Operation::equal, a, b);
  }

  Value sum() {
    Value left = product();
    while (at("+") || at("-")) {
      const bool is_sum = take(true).text == "+";
      const NodeId right = number(product());
      left.node = is_sum ? tree_.add(number(left), right) : tree_.subtract(number(left), right);
    }
    return left;
  }

  Value product() {
    Value left = signed_power();
    while (at("*") || at("/") || at("//") || at("%")) {
      const Token sign = take(true);
      const NodeId right = number(signed_power());
      left.node = product_of(sign.text, number(left), right);
    }
    return left;
  }

  NodeId product_of(std::string_view sign, NodeId a, NodeId b) {
    if (sign == "*") return tree_.multiply(a, b);
    if (sign == "/") return keeps_quotients_ ? tree_.quotient(a, b) : tree_.divide(a, b);
    const NodeId quotient = tree_.make(Operation::floor_divide, a, b);
    return sign == "//" ? quotient : tree_.subtract(a, tree_.multiply(quotient, b));
  }

  Value signed_power() {
    const Token first = peek();
    bool is_negative = false, is_signed = false, is_opposite = false, has_tilde = false;
    while (at("-") || at("+") || at("~")) {
      if (at("~") ? is_signed : has_tilde) unexpected("a condition after ~, and a number after + and -");
      has_tilde = has_tilde || at("~");
      is_signed = !has_tilde;
      is_negative ^= at("-");
      is_opposite ^= at("~");
      take();
    }
    Value value = power();
    if (!is_signed && !has_tilde) return value;
    if (is_signed) value.node = number(value);
    if (is_negative) value.node = tree_.negate(value.node);
    const Choice choice = has_tilde ? condition(value) : Choice();
    if (is_opposite) value.choice = [choice](NodeId a, NodeId b) { return choice(b, a); };
    value.first = first;
    return value;
  }

  Value power() {
    Value base = primary();
    if (!at("^")) return base;
    if (++depth_ > deepest_nesting) fail(peek(), fmt::format("nested more than {} deep", deepest_nesting));
    take();
    const NodeId exponent = number(signed_power());
    --depth_;
    base.node = tree_.power(number(base), exponent);
    return base;
  }

  Value primary() {
    const Token first = peek();
    if (first.kind == Token::Kind::number) return {first, tree_.number(take().number)};
    const NamedMask* const mask = find_name(named_masks, first.text);
    if (first.kind == Token::Kind::name && mask != nullptr && peek(1).text == "(") return {first, 0, named_mask(*mask)};
    if (first.kind == Token::Kind::name) return {first, name()};
    if (!at("(")) unexpected("a number, s, a name or \"(\"");
    take();
    Value inside = expression();
    expect(")");
    return inside;
  }

  NodeId name() {
    const Token token = take();
    if (token.text == "with" || !advice_for_word(token.text).empty()) {
      fail(token, fmt::format("expected a number, s, a name or \"(\", but \"{}\" came", token.text),
           advice_for_word(token.text));
    }
    if (at("(")) return call(token);
    if (token.text == "s" && !score_) {
      fail(token, "a mask does not read the score s", "use positions and tensors of the call");
    }
    if (token.text == "s") {
      note(token);
      return *score_;
    }
    if (token.text == "pi") return tree_.number(std::numbers::pi);
    if (token.text == "inf") return tree_.number(std::numeric_limits<double>::infinity());
    if (token.text == where || find_builtin(token.text) != nullptr || find_activation(token.text) != nullptr) {
      fail(token, fmt::format("{} is a function", token.text), fmt::format("write {}(s)", token.text));
    }
    note(token);
    if (at("[")) return read(token);
    parsed_.parameters.try_emplace(token.text, token.position);
    return tree_.parameter(token.text);
  }

  void note(const Token& token) {
    parsed_.contents.names.push_back(
        {token.text, token.position, token.position + token.text.size(), token.position == whole_index_});
  }

  NodeId read(const Token& tensor) {
    std::vector<NodeId> indices;
    std::vector<std::string> names_of_indices;
    do {
      take();
      const bool is_name = peek().kind == Token::Kind::name && (is_symbol(peek(1), ",") || is_symbol(peek(1), "]"));
      names_of_indices.push_back(is_name ? peek().text : "");
      if (is_name) whole_index_ = peek().position;
      indices.push_back(expression_number());
    } while (at(","));
    expect("]");
    parsed_.contents.reads.push_back({tensor.text, std::move(names_of_indices)});
    if (indices.size() > most_axes) {
      fail(tensor, fmt::format("{} has {} indices", tensor.text, indices.size()),
           fmt::format("a tensor has at most {} axes: combine two of them", most_axes));
    }
    parsed_.reads.try_emplace(tensor.text, tensor.position);
    return tree_.read(tensor.text, std::move(indices));
  }

  NodeId call(const Token& function) {
    if (function.text == where) return choice_call(function);
    if (const Builtin* builtin = find_builtin(function.text)) {
      const bool outside = std::exchange(keeps_quotients_, builtin->name == "floor");
      const Arguments arguments = numbers(call_arguments());
      keeps_quotients_ = outside;
      check_count(function, arguments.size(), builtin->least, builtin->most);
      return builtin->build(tree_, arguments);
    }
    const NamedActivation* row = find_activation(function.text);
    if (usual_name(function.text) == "softmax") fail(function, softmax_fault, softmax_advice);
    if (row == nullptr) {
      fail(function, fmt::format("there is no function \"{}\"", function.text), suggestion(function.text));
    }
    const Arguments arguments = numbers(call_arguments());
    check_count(function, arguments.size(), 1, 1);
    return activation(*row, arguments[0]);
  }

  NodeId choice_call(const Token& function) {
    const std::vector<Value> arguments = call_arguments();
    const Choice choice = arguments.empty() ? Choice() : condition(arguments[0]);
    const Arguments branches = numbers(arguments, 1);
    check_count(function, arguments.size(), 3, 3);
    return choice(branches[0], branches[1]);
  }

  // --- named masks ---------------------------------------------------------------------------------------------------

  Choice named_mask(const NamedMask& mask) {
    const Token function = take();
    const std::vector<Value> values = call_arguments();
    const Arguments x = numbers(values);
    check_count(function, x.size(), mask.least, mask.most);
    if (mask.name == "causal") return at_most(position("kv_idx"), row());
    if (mask.name == "window") {
      return all_of({within(values[0], tree_.subtract(row(), position("kv_idx"))),
                     within(values[1], tree_.subtract(position("kv_idx"), row()))});
    }
    if (mask.name == "prefix") return below(position("kv_idx"), x[0]);
    if (mask.name == "interval") return all_of({at_most(x[0], position("kv_idx")), below(position("kv_idx"), x[1])});
    return hstu(values, x);
  }

  /// The mask of gdpa.mask.hstu (python/gdpa/mask.py has the rule): contexts, targets, target_group_size and window.
  Choice hstu(const std::vector<Value>& values, const Arguments& x) {
    const NodeId contexts = x[0], targets = x[1], key = position("kv_idx");
    const NodeId end = tree_.subtract(position("len_k"), targets);
    const NodeId group = x.size() > 2 ? x[2] : tree_.number(1);
    if (tree_.is_number(group) && tree_[group].number < 1) {
      fail(values[2].first, "expected a group of at least 1 target", "the third argument is the size of a group");
    }
    std::vector<Choice> history = {at_most(key, row())};
    if (x.size() > 3) {
      history.push_back(any_of({within(values[3], tree_.subtract(row(), key)), below(key, contexts)}));
    }
    if (!tree_.is_number(targets, 0)) {
      // The targets before the first one of the group of the row.
      const NodeId target = tree_.subtract(tree_.add(position("q_idx"), targets), position("len_q"));
      const NodeId first = tree_.is_number(group, 1)
                               ? target
                               : tree_.multiply(tree_.make(Operation::floor_divide, target, group), group);
      history.push_back(any_of({below(key, end), at_most(tree_.add(end, first), key)}));
    }
    if (tree_.is_number(contexts, 0)) return all_of(history);
    return any_of({all_of({below(row(), contexts), below(key, end)}), all_of(history)});
  }

  /// The key at the diagonal of a query: the last query is the last key.
  NodeId row() { return tree_.subtract(tree_.add(position("q_idx"), position("len_k")), position("len_q")); }

  /// A position that a named mask reads, although the text does not have its name.
  NodeId position(const std::string& name) {
    parsed_.contents.names.push_back({name, peek().position, peek().position, false});
    return tree_.parameter(name);
  }

  Choice below(NodeId a, NodeId b) { return comparison("<", a, b); }
  Choice at_most(NodeId a, NodeId b) { return comparison("<=", a, b); }

  /// Whether a distance is at most a limit, of which -1 is none.
  Choice within(const Value& limit, NodeId distance) {
    if (!tree_.is_number(limit.node) || tree_[limit.node].number >= 0) return at_most(distance, limit.node);
    if (!tree_.is_number(limit.node, -1)) {
      fail(limit.first, "expected at least 0 keys, or -1 for no bound", "correct the number");
    }
    return [](NodeId a, NodeId) { return a; };
  }

  static Choice joined(const std::vector<Choice>& parts, bool are_all) {
    return [parts, are_all](NodeId a, NodeId b) {
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) (are_all ? a : b) = (*part)(a, b);
      return are_all ? a : b;
    };
  }
  static Choice all_of(const std::vector<Choice>& parts) { return joined(parts, true); }
  static Choice any_of(const std::vector<Choice>& parts) { return joined(parts, false); }

  std::vector<Value> call_arguments() {
    expect("(");
    std::vector<Value> arguments;
    if (!at(")")) {
      do {
        if (!arguments.empty()) take();
        arguments.push_back(expression());
      } while (at(","));
    }
    if (!at(")")) unexpected("\",\" or \")\"");
    take();
    return arguments;
  }

  Arguments numbers(const std::vector<Value>& values, std::size_t first = 0) const {
    Arguments result;
    for (std::size_t i = first; i < values.size(); ++i) result.push_back(number(values[i]));
    return result;
  }

  void check_count(const Token& function, std::size_t count, std::size_t least, std::size_t most) const {
    if (count >= least && count <= most) return;
    const std::string most_text = most == any ? " or more" : most > least ? fmt::format(" to {}", most) : "";
    const std::string wanted = fmt::format("{}{} argument{}", least, most_text, most == 1 ? "" : "s");
    fail(function, fmt::format("{} takes {}, but {} came", function.text, wanted, count));
  }

  // The clause "with a = 2, b = -0.5".
  void bindings() {
    do {
      take();
      const Token parameter = peek();
      if (parameter.kind != Token::Kind::name) unexpected("the name of a parameter");
      take();
      if (!at("=")) unexpected("\"=\"");
      take();
      const Token first = peek();
      const double sign = at("-") ? -1 : 1;
      if (at("-") || at("+")) take();
      if (peek().kind != Token::Kind::number) unexpected("a number");
      const double value = sign * take().number;
      if (!parsed_.bindings.emplace(parameter.text, value).second) {
        fail(parameter, fmt::format("the parameter {} is given twice", parameter.text));
      }
      if (!parsed_.parameters.contains(parameter.text) && !parsed_.reads.contains(parameter.text)) {
        fail(parameter, fmt::format("the expression has no parameter \"{}\"", parameter.text), parameters_of(parsed_));
      }
    } while (at(","));
  }

  Tree& tree_;
  std::optional<NodeId> score_;
  std::string_view text_;
  std::vector<Token> tokens_;
  std::size_t next_ = 0;
  int depth_;
  bool keeps_quotients_ = false;            // in an argument of floor
  std::optional<std::size_t> whole_index_;  // the position of the last name that is an index and nothing else
  CanonicalText canonical_;
  Parsed parsed_;
};

}  // namespace

Parsed parse(std::string_view text, Form form, const std::string& score_factor) {
  if (text.size() > longest_text) {
    throw Error(ErrorKind::value, fmt::format("expected at most {} characters, but {} came; simplify the "
                                              "expression",
                                              longest_text, text.size()));
  }
  Tree tree;
  const NodeId score = score_factor.empty() ? tree.score() : tree.multiply(tree.parameter(score_factor), tree.score());
  Parsed parsed = Parser(tree, form == Form::number ? std::optional(score) : std::nullopt, text).whole();
  parsed.tree = std::move(tree);
  if (score_factor.empty()) return parsed;
  if (!parsed.tree.reads_score(parsed.root)) {
    throw Error(ErrorKind::value, fmt::format("expected an expression that reads the score s, which has a factor, got "
                                              "\"{}\"; leave the factor out",
                                              parsed.text));
  }
  parsed.parameters.emplace(score_factor, 0);
  return parsed;
}

void refuse_at(std::string_view text, std::size_t position, std::string_view what, std::string_view advice) {
  // The message shows only a part of a long text, around the fault.
  constexpr std::size_t margin = 50;
  const auto is_continuation = [&](std::size_t i) { return i < text.size() && (text[i] & 0xC0) == 0x80; };
  std::size_t begin = position > margin ? position - margin : 0;
  std::size_t end = std::min(text.size(), position + margin);
  while (is_continuation(begin)) ++begin;
  while (is_continuation(end)) ++end;
  const std::string_view before_mark = begin > 0 ? "..." : "";
  const std::string_view after_mark = end < text.size() ? "..." : "";
  std::string shown = fmt::format("{}{}{}", before_mark, text.substr(begin, end - begin), after_mark);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  std::size_t column = before_mark.size();
  for (std::size_t i = begin; i < position; ++i) column += is_continuation(i) ? 0 : 1;
  throw Error(ErrorKind::value, fmt::format("{}\n    {}\n    {:>{}}{}{}", what, shown, "^", column + 1,
                                            advice.empty() ? "" : "\n", advice));
}

namespace {

/// A name of a position in version 0.1, and its successors.
struct OldName {
  std::string_view name;
  std::string_view position;
  std::string_view meaning;
  std::string_view row = {};  ///< in the packed operand, which version 0.1 read from a tensor of as many elements
};
constexpr std::array old_names = {OldName{"b", "batch", "the batch entry"}, OldName{"h", "head", "the query head"},
                                  OldName{"i", "q_idx", "the position of the query in its sequence", "q_row"},
                                  OldName{"j", "kv_idx", "the position of the key in its sequence", "kv_row"}};

/// Throws the error for a name of version 0.1.
[[noreturn]] void refuse_old(const Parsed& parsed, std::string_view text, std::size_t position, const OldName& old) {
  const auto used = std::ranges::find(parsed.contents.names, position, &NameInText::begin);
  const bool may_be_row = !old.row.empty() && used->is_whole_index;
  const std::string advice =
      may_be_row ? fmt::format(
                       "write {} if the axis has the positions in a sequence, or {} if it has the rows of the "
                       "packed operand; ",
                       old.position, old.row)
                 : fmt::format("write {} for {}, ", old.position, old.meaning);
  refuse_at(text, position, fmt::format("{} is no longer a name of the language", old.name),
            fmt::format("{}or give a parameter with this name its number: ... with {} = 1", advice, old.name));
}

}  // namespace

void refuse_unbound(const Parsed& parsed, std::string_view text, std::size_t position, std::string_view name) {
  if (const OldName* const old = find_name(old_names, name)) refuse_old(parsed, text, position, *old);
  const std::string usual = usual_name(name);
  if (usual == "softmax") refuse_at(text, position, softmax_fault, softmax_advice);
  if (usual != name && (find_activation(usual) != nullptr || find_builtin(usual) != nullptr)) {
    refuse_at(text, position, fmt::format("there is no function \"{}\"", name),
              fmt::format("write {}, which is the same function", usual));
  }
  if (name == "e") {
    refuse_at(text, position, "the parameter e has no number",
              "write exp(x) for e^x, or give it: ... with e = 2.718281828459045");
  }
  // One changed letter in a short name is more often a parameter than a misspelt function: "b", "tau", "beta".
  constexpr std::size_t shortest_misspelt = 4;
  const std::string nearest = name.size() < shortest_misspelt ? "" : nearest_function(name, name.size() < 6 ? 2 : 3);
  const std::string what = nearest.empty()
                               ? fmt::format("the parameter {} has no number", name)
                               : fmt::format("{} is neither a function nor a parameter with a number", name);
  refuse_at(text, position, what,
            fmt::format("{}give it: ... with {} = 1; or write s for the score", did_you_mean(nearest), name));
}

std::string listed(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ", ")); }

std::string parameters_of(const Parsed& parsed) {
  std::vector<std::string> names;
  for (const auto& parameter : parsed.parameters) names.push_back(parameter.first);
  return names.empty() ? "it has none" : "its parameters: " + listed(names);
}

}  // namespace gdpa::activation
