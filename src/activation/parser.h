// From text to tree: the expression language of docs/functions.md, and the errors that show a fault with a caret.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "activation/tree.h"

namespace gdpa::activation {

/// What a text says. `text` is it in canonical form, without the clause that binds parameters.
struct Parsed {
  Tree tree;
  NodeId root = 0;
  std::string text;
  std::map<std::string, double> bindings;         ///< of the clause "with a = 2"
  std::map<std::string, std::size_t> parameters;  ///< used in the expression, with where they first stand in it
};

/// Throws Error (value) where the text does not follow the grammar.
Parsed parse(std::string_view text);

/// The message of a fault at a place of the text: what is wrong, the text with a caret under the place, what to do.
std::string fault(std::string_view text, std::size_t position, std::string_view what, std::string_view advice);

/// The message for a name in an expression without a number: a parameter that the caller forgot, or a misspelt
/// function.
std::string unbound_fault(std::string_view text, std::size_t position, std::string_view name);

/// "one, two, three"
std::string listed(const std::vector<std::string>& names);

}  // namespace gdpa::activation
