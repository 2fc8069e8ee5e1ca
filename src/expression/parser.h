// Parses the expression language of docs/functions.md. Its errors mark a fault with a caret.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "expression/tree.h"

namespace gdpa::activation {

struct Token {
  enum class Kind { number, name, symbol, end };
  Kind kind = Kind::end;
  std::string text;  ///< "**" is read as "^"
  double number = 0;
  std::size_t position = 0;
};

/// Returns the tokens of a text. The last token has the kind end. Throws Error (value) for an invalid character or
/// number.
std::vector<Token> tokenize(std::string_view text);

/// Returns the number with the fewest digits that parse back to it.
std::string shortest(double number);

/// Writes tokens as they are written in canonical form: "2 * (s - 1)^2", "max(s, -1)".
class CanonicalText {
 public:
  /// `binary`: a + or - between two operands, rather than a sign.
  void append(const Token& token, bool binary);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// The result of an expression: a number, or the condition of a mask. A condition does not read the score, and its
/// tree is the number where(condition, 1, 0).
enum class Form { number, condition };

/// A name in a text that is not the name of a function or of a constant.
struct NameInText {
  std::string name;
  std::size_t begin = 0;
  std::size_t end = 0;          ///< equal to `begin` for a position that a named mask reads, such as kv_idx of causal()
  bool is_whole_index = false;  ///< whether the name is an index of a tensor and nothing else
};

/// A read of a tensor. For each axis, it has the name that is the whole index, or an empty text.
struct ReadInText {
  std::string tensor;
  std::vector<std::string> indices;
};

/// What a text contains: its names and reads in the order of the text, without the clause that binds parameters.
struct Contents {
  std::vector<NameInText> names;
  std::vector<ReadInText> reads;
  std::size_t end = 0;  ///< of the expression: where the clause begins
};

/// A parsed text. `text` is the canonical form without the clause that binds parameters.
struct Parsed {
  Tree tree;
  NodeId root = 0;
  std::size_t functions = 1;  ///< more than one: function h is for query head h
  std::string text;
  std::map<std::string, double> bindings;         ///< from the clause "with a = 2"
  std::map<std::string, std::size_t> parameters;  ///< the names in the expression, with their first positions
  std::map<std::string, std::size_t> reads;       ///< the tensors that the expression reads by index, in the same way
  Contents contents;
};

/// With a `score_factor`, the parameter of this name multiplies the score. Throws Error (value) if the text does not
/// follow the grammar, or if it does not read the score that has a factor. Messages do not name the expression.
Parsed parse(std::string_view text, Form form = Form::number, const std::string& score_factor = "");

/// Throws Error (value) for a fault: the description, the text with a caret below the fault, and a remedy.
[[noreturn]] void refuse_at(std::string_view text, std::size_t position, std::string_view what,
                            std::string_view advice);

/// Throws Error (value) for a name without a number: a parameter without a value, or a misspelt function.
[[noreturn]] void refuse_unbound(const Parsed& parsed, std::string_view text, std::size_t position,
                                 std::string_view name);

/// "its parameters: a, b", or "it has none"
std::string parameters_of(const Parsed& parsed);

/// "one, two, three"
std::string listed(const std::vector<std::string>& names);

}  // namespace gdpa::activation
