// Tokens of the expression language, and the spacing of its canonical form.
#pragma once

#include <string>
#include <string_view>
#include <vector>

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

}  // namespace gdpa::activation
