// See parser.h. A recursive descent parser. Each method parses the construct of its name, and its error states the
// expected input:
//
//     text        = expression { ";" expression } [ "with" name "=" number { "," name "=" number } ]
//     expression  = a sum, or a comparison of two sums, which is a condition
//     sum         = product { ("+" | "-") product }
//     product     = signed { ("*" | "/") signed }
//     signed      = ("-" | "+") signed | power
//     power       = primary [ ("^" | "**") signed ]
//     primary     = number | name | name "(" expression { "," expression } ")" | "(" expression ")"
//                   | name "[" expression { "," expression } "]"
#include "activation/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>
#include <vector>

#include "activation/lexer.h"
#include "gdpa/activation.h"
#include "gdpa/error.h"

namespace gdpa::activation {

namespace {

constexpr std::size_t longest_text = 64 * 1024;
constexpr int deepest_nesting = 200;

using Arguments = std::vector<NodeId>;

/// A function of the language. Its first argument is a condition where `is_choice`.
struct Builtin {
  std::string_view name;
  std::size_t least;
  std::size_t most;
  NodeId (*build)(Tree&, const Arguments&);
  bool is_choice = false;
};

template <Operation operation>
NodeId unary(Tree& tree, const Arguments& x) {
  return tree.make(operation, x[0]);
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
NodeId where(Tree& tree, const Arguments& x) { return tree.select(x[0], x[1], x[2]); }

constexpr std::size_t any = std::numeric_limits<std::size_t>::max();

const std::vector<Builtin>& builtins() {
  static const std::vector<Builtin> table = {
      {"where", 3, 3, where, true},
      {"min", 2, any, fold<Operation::minimum>},
      {"max", 2, any, fold<Operation::maximum>},
      {"clamp", 3, 3, between<Edge::one>},
      {"guard", 3, 3, between<Edge::through>},
      {"abs", 1, 1, unary<Operation::absolute>},
      {"sign", 1, 1, unary<Operation::sign>},
      {"floor", 1, 1, floor},
      {"sqrt", 1, 1, unary<Operation::sqrt>},
      {"rsqrt", 1, 1, unary<Operation::rsqrt>},
      {"exp", 1, 1, unary<Operation::exp>},
      {"exp2", 1, 1, unary<Operation::exp2>},
      {"expm1", 1, 1, unary<Operation::expm1>},
      {"log", 1, 1, unary<Operation::log>},
      {"log2", 1, 1, unary<Operation::log2>},
      {"log1p", 1, 1, unary<Operation::log1p>},
      {"tanh", 1, 1, unary<Operation::tanh>},
      {"sigmoid", 1, 1, unary<Operation::sigmoid>},
      {"erf", 1, 1, unary<Operation::erf>},
      {"softplus", 1, 1, unary<Operation::softplus>},
      {"sin", 1, 1, unary<Operation::sin>},
      {"cos", 1, 1, unary<Operation::cos>},
      {"relu", 1, 1, relu},
  };
  return table;
}

const Builtin* find_builtin(std::string_view name) {
  const auto found = std::find_if(builtins().begin(), builtins().end(), [&](const auto& f) { return f.name == name; });
  return found == builtins().end() ? nullptr : &*found;
}

const NamedActivation* find_activation(std::string_view name) {
  const auto& table = named_activations();
  const auto found = std::find_if(table.begin(), table.end(), [&](const auto& row) { return row.name == name; });
  return found == table.end() ? nullptr : &*found;
}

std::vector<std::string> function_names() {
  std::vector<std::string> names;
  for (const Builtin& function : builtins()) names.emplace_back(function.name);
  for (const NamedActivation& row : named_activations()) {
    if (find_builtin(row.name) == nullptr) names.push_back(row.name);
  }
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

/// The advice for a call of an unknown function: did you mean "gelu"? functions: ...
std::string suggestion(std::string_view name) {
  return did_you_mean(nearest_function(name, 3)) + "functions: " + listed(function_names());
}

class Parser {
 public:
  Parser(Tree& tree, NodeId score, std::string_view text, int depth = 0)
      : tree_(tree), score_(score), text_(text), tokens_(tokenize(text)), depth_(depth) {}

  NodeId whole() {
    if (tokens_.size() == 1) {
      throw Error(ErrorKind::value,
                  "activation: expected a name (gelu) or an expression in s (s * sigmoid(1.702 * s)), "
                  "but the text is empty");
    }
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
    functions = of_heads.size();
    if (peek().kind == Token::Kind::name && peek().text == "with") {
      bindings();
    }
    if (peek().kind != Token::Kind::end) unexpected("an operator or the end");
    return root;
  }

  std::string canonical() const { return canonical_.text(); }
  std::size_t functions = 1;
  std::map<std::string, double> bound;
  std::map<std::string, std::size_t> parameters;
  std::map<std::string, std::size_t> reads;

 private:
  struct Value {
    NodeId node;
    bool is_condition = false;
    bool is_negated = false;  // a condition read as its opposite: !=, which has no step of its own
  };

  const Token& peek(std::size_t ahead = 0) const { return tokens_[std::min(next_ + ahead, tokens_.size() - 1)]; }

  Token take(bool binary = false) {
    const Token token = peek();
    canonical_.append(token, binary);
    ++next_;
    return token;
  }

  bool at(std::string_view symbol) const { return peek().kind == Token::Kind::symbol && peek().text == symbol; }

  [[noreturn]] void fail(const Token& token, std::string_view what, std::string_view advice = "") const {
    throw Error(ErrorKind::value, fault(text_, token.position, what, advice));
  }

  [[noreturn]] void unexpected(std::string_view expected) const {
    const Token& token = peek();
    const std::string came = token.kind == Token::Kind::end ? "the text ends" : fmt::format("\"{}\" came", token.text);
    fail(token, fmt::format("expected {}, but {}", expected, came));
  }

  void expect(std::string_view symbol) {
    if (!at(symbol)) unexpected(fmt::format("\"{}\"", symbol));
    take();
  }

  bool is_bare_name() const {
    return peek().kind == Token::Kind::name && find_activation(peek().text) != nullptr &&
           (peek(1).kind == Token::Kind::end || peek(1).text == "with" || peek(1).text == ";");
  }

  NodeId function() { return is_bare_name() ? bare_name() : expression_number(); }

  NodeId bare_name() { return activation(*find_activation(take().text), score_); }

  // The expression of a named function is parsed with x instead of s.
  NodeId activation(const NamedActivation& row, NodeId x) {
    return Parser(tree_, x, row.expression, depth_ + 1).whole();
  }

  NodeId expression_number() {
    const Token first = peek();
    const Value value = expression();
    if (value.is_condition) {
      fail(first, "expected a number, but a comparison came",
           "a comparison is a condition: use it as the first argument of where(condition, a, b)");
    }
    return value.node;
  }

  Value expression_condition() {
    const Token first = peek();
    const Value value = expression();
    if (!value.is_condition) {
      fail(first, "expected a condition, but a number came", "compare it: where(s > 0, a, b)");
    }
    return value;
  }

  Value expression() {
    const Token first = peek();
    if (++depth_ > deepest_nesting) {
      fail(first, fmt::format("nested more than {} deep", deepest_nesting), "simplify the expression");
    }
    Value left{sum()};
    if (is_comparison(peek())) {
      const Token sign = take(true);
      const NodeId right = sum();
      left = {compare(sign.text, left.node, right), true, sign.text == "!="};
      if (is_comparison(peek())) {
        fail(peek(), "comparisons cannot follow one another", "nest them: where(a < s, where(s < b, x, y), y)");
      }
    }
    --depth_;
    return left;
  }

  static bool is_comparison(const Token& token) {
    return token.kind == Token::Kind::symbol && (token.text == "<" || token.text == "<=" || token.text == ">" ||
                                                 token.text == ">=" || token.text == "==" || token.text == "!=");
  }

  // != has the node of ==, and where() exchanges its branches.
  NodeId compare(std::string_view sign, NodeId a, NodeId b) {
    if (sign == "<") return tree_.make(Operation::less, a, b);
    if (sign == "<=") return tree_.make(Operation::less_equal, a, b);
    if (sign == ">") return tree_.make(Operation::less, b, a);
    if (sign == ">=") return tree_.make(Operation::less_equal, b, a);
    return tree_.make(Operation::equal, a, b);
  }

  NodeId sum() {
    NodeId left = product();
    while (at("+") || at("-")) {
      const bool is_sum = take(true).text == "+";
      const NodeId right = product();
      left = is_sum ? tree_.add(left, right) : tree_.subtract(left, right);
    }
    return left;
  }

  NodeId product() {
    NodeId left = signed_power();
    while (at("*") || at("/")) {
      const bool is_product = take(true).text == "*";
      const NodeId right = signed_power();
      left = is_product         ? tree_.multiply(left, right)
             : keeps_quotients_ ? tree_.quotient(left, right)
                                : tree_.divide(left, right);
    }
    return left;
  }

  NodeId signed_power() {
    bool is_negative = false;
    while (at("-") || at("+")) is_negative ^= take().text == "-";
    const NodeId value = power();
    return is_negative ? tree_.negate(value) : value;
  }

  NodeId power() {
    const NodeId base = primary();
    if (!at("^")) return base;
    if (++depth_ > deepest_nesting) fail(peek(), fmt::format("nested more than {} deep", deepest_nesting));
    take();
    const NodeId exponent = signed_power();
    --depth_;
    return tree_.power(base, exponent);
  }

  NodeId primary() {
    if (peek().kind == Token::Kind::number) return tree_.number(take().number);
    if (peek().kind == Token::Kind::name) return name();
    if (!at("(")) unexpected("a number, s, a name or \"(\"");
    take();
    const NodeId inside = expression_number();
    expect(")");
    return inside;
  }

  NodeId name() {
    const Token token = take();
    if (at("(")) return call(token);
    if (token.text == "s") return score_;
    if (token.text == "pi") return tree_.number(std::numbers::pi);
    if (token.text == "inf") return tree_.number(std::numeric_limits<double>::infinity());
    if (token.text == "with") fail(token, "expected a number, s, a name or \"(\", but \"with\" came");
    if (find_builtin(token.text) != nullptr || find_activation(token.text) != nullptr) {
      fail(token, fmt::format("{} is a function", token.text), fmt::format("write {}(s)", token.text));
    }
    if (at("[")) return read(token);
    parameters.try_emplace(token.text, token.position);
    return tree_.parameter(token.text);
  }

  NodeId read(const Token& tensor) {
    take();
    std::vector<NodeId> indices = {expression_number()};
    while (at(",")) {
      take();
      indices.push_back(expression_number());
    }
    expect("]");
    if (indices.size() > most_axes) {
      fail(tensor, fmt::format("{} has {} indices", tensor.text, indices.size()),
           fmt::format("a tensor has at most {} axes: combine two of them", most_axes));
    }
    reads.try_emplace(tensor.text, tensor.position);
    return tree_.read(tensor.text, std::move(indices));
  }

  NodeId call(const Token& function) {
    if (const Builtin* builtin = find_builtin(function.text)) {
      const bool outside = std::exchange(keeps_quotients_, builtin->build == floor);
      Arguments arguments = call_arguments(builtin->is_choice);
      keeps_quotients_ = outside;
      check_count(function, arguments.size(), builtin->least, builtin->most);
      return builtin->build(tree_, arguments);
    }
    const NamedActivation* row = find_activation(function.text);
    if (row == nullptr)
      fail(function, fmt::format("there is no function \"{}\"", function.text), suggestion(function.text));
    const Arguments arguments = call_arguments(false);
    check_count(function, arguments.size(), 1, 1);
    return activation(*row, arguments[0]);
  }

  Arguments call_arguments(bool is_choice) {
    expect("(");
    Arguments arguments;
    bool is_exchanged = false;
    if (!at(")")) {
      do {
        if (!arguments.empty()) take();
        if (is_choice && arguments.empty()) {
          const Value condition = expression_condition();
          arguments.push_back(condition.node);
          is_exchanged = condition.is_negated;
        } else {
          arguments.push_back(expression_number());
        }
      } while (at(","));
    }
    if (!at(")")) unexpected("\",\" or \")\"");
    take();
    if (is_exchanged && arguments.size() == 3) std::swap(arguments[1], arguments[2]);
    return arguments;
  }

  void check_count(const Token& function, std::size_t count, std::size_t least, std::size_t most) const {
    if (count >= least && count <= most) return;
    const std::string wanted =
        fmt::format("{}{} argument{}", least, most == any ? " or more" : "", most == 1 ? "" : "s");
    fail(function, fmt::format("{} takes {}, but {} came", function.text, wanted, count));
  }

  // The clause "with a = 2, b = -0.5". It is no part of the canonical text, which is completed once parameters given
  // elsewhere are known.
  void bindings() {
    const CanonicalText expression_only = canonical_;
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
      if (!bound.emplace(parameter.text, value).second) {
        fail(parameter, fmt::format("the parameter {} is given twice", parameter.text));
      }
      if (parameters.count(parameter.text) == 0 && reads.count(parameter.text) == 0) {
        std::vector<std::string> used;
        for (const auto& entry : parameters) used.push_back(entry.first);
        fail(parameter, fmt::format("the expression has no parameter \"{}\"", parameter.text),
             used.empty() ? "it has none" : "its parameters: " + listed(used));
      }
    } while (at(","));
    canonical_ = expression_only;
  }

  Tree& tree_;
  NodeId score_;
  std::string_view text_;
  std::vector<Token> tokens_;
  std::size_t next_ = 0;
  int depth_;
  bool keeps_quotients_ = false;  // in an argument of floor
  CanonicalText canonical_;
};

}  // namespace

Parsed parse(std::string_view text) {
  if (text.size() > longest_text) {
    throw Error(ErrorKind::value, fmt::format("activation: expected at most {} characters, but {} came; simplify the "
                                              "expression",
                                              longest_text, text.size()));
  }
  Parsed parsed;
  Parser parser(parsed.tree, parsed.tree.score(), text);
  parsed.root = parser.whole();
  parsed.functions = parser.functions;
  parsed.text = parser.canonical();
  parsed.bindings = std::move(parser.bound);
  parsed.parameters = std::move(parser.parameters);
  parsed.reads = std::move(parser.reads);
  return parsed;
}

std::string fault(std::string_view text, std::size_t position, std::string_view what, std::string_view advice) {
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
  return fmt::format("activation: {}\n    {}\n    {:>{}}{}{}", what, shown, "^", column + 1, advice.empty() ? "" : "\n",
                     advice);
}

std::string unbound_fault(std::string_view text, std::size_t position, std::string_view name) {
  if (name == "e") {
    return fault(text, position, "the parameter e has no number",
                 "write exp(x) for e^x, or give it: ... with e = 2.718281828459045");
  }
  // One changed letter in a short name is more often a parameter than a misspelt function: "b", "tau", "beta".
  constexpr std::size_t shortest_misspelt = 4;
  const std::string nearest = name.size() < shortest_misspelt ? "" : nearest_function(name, name.size() < 6 ? 2 : 3);
  const std::string what = nearest.empty()
                               ? fmt::format("the parameter {} has no number", name)
                               : fmt::format("{} is neither a function nor a parameter with a number", name);
  return fault(text, position, what,
               fmt::format("{}give it: ... with {} = 1; or write s for the score", did_you_mean(nearest), name));
}

std::string listed(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ", ")); }

}  // namespace gdpa::activation
