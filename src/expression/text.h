// Prints a tree as a text of the expression language.
#pragma once

#include <string>

#include "expression/tree.h"

namespace gdpa::activation {

/// Returns a text that parses back to the expression. A text longer than a screen is cut with "...", because shared
/// subexpressions are written at each use.
std::string to_text(const Tree& tree, NodeId root);

}  // namespace gdpa::activation
