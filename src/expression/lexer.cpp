// Tokens of the expression language, and the spacing of its canonical form.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <utility>

#include "expression/parser.h"

namespace gdpa::activation {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  std::vector<Token> run() {
    while (true) {
      while (position_ < text_.size() && is_space(text_[position_])) ++position_;
      if (position_ == text_.size()) break;
      tokens_.push_back(next());
    }
    tokens_.push_back({Token::Kind::end, "", 0, text_.size()});
    return std::move(tokens_);
  }

 private:
  char at(std::size_t position) const { return position < text_.size() ? text_[position] : '\0'; }

  Token next() {
    const char c = at(position_);
    if (is_digit(c) || (c == '.' && is_digit(at(position_ + 1)))) return number();
    if (is_letter(c)) return name();
    return symbol();
  }

  Token number() {
    const char* const begin = text_.data() + position_;
    double value = 0;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    const std::size_t length = static_cast<std::size_t>(end - begin);
    if (error == std::errc::result_out_of_range) {
      refuse_at(text_, position_, "this number is beyond the range of fp64", "");
    }
    const std::size_t after = position_ + length;
    if (is_letter(at(after)) || is_digit(at(after)) || at(after) == '.') {
      refuse_at(text_, after, fmt::format("expected an operator after the number {}", text_.substr(position_, length)),
                "write a product with *: 2 * s");
    }
    return take(Token::Kind::number, length, value);
  }

  Token name() {
    std::size_t length = 1;
    while (is_letter(at(position_ + length)) || is_digit(at(position_ + length))) ++length;
    return take(Token::Kind::name, length);
  }

  Token symbol() {
    for (std::string_view two : {"**", "//", "<=", ">=", "==", "!="}) {
      if (text_.substr(position_, 2) == two) {
        Token token = take(Token::Kind::symbol, 2);
        if (two == "**") token.text.assign(1, '^');
        return token;
      }
    }
    if (std::string_view("+-*/%^<>(),=[];&|~").find(at(position_)) != std::string_view::npos) {
      return take(Token::Kind::symbol, 1);
    }
    std::size_t length = 1;  // the whole of a UTF-8 character
    while ((at(position_ + length) & 0xC0) == 0x80) ++length;
    refuse_at(text_, position_, fmt::format("\"{}\" is no part of an expression", text_.substr(position_, length)),
              "expressions hold numbers, s, names, + - * / // % ^, comparisons, & | ~, parentheses, brackets and "
              "commas");
  }

  Token take(Token::Kind kind, std::size_t length, double value = 0) {
    Token token{kind, std::string(text_.substr(position_, length)), value, position_};
    position_ += length;
    return token;
  }

  std::string_view text_;
  std::size_t position_ = 0;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view text) { return Lexer(text).run(); }

std::string shortest(double number) {
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  return fmt::format("{}", number == std::floor(number) && std::fabs(number) < 1e15 ? fmt::format("{:.0f}", number)
                                                                                    : fmt::format("{}", number));
}

void CanonicalText::append(const Token& token, bool binary) {
  const bool spaced = token.kind == Token::Kind::symbol && binary && token.text != "^";
  if (token.kind == Token::Kind::number) {
    text_ += shortest(token.number);
  } else if (spaced) {
    text_.append(" ").append(token.text).append(" ");
  } else if (token.text == "," || token.text == ";") {
    text_ += token.text + " ";
  } else {
    text_ += token.text;
  }
}

}  // namespace gdpa::activation
