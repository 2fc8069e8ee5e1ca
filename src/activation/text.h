// A tree as text of the expression language.
#pragma once

#include <string>

#include "activation/tree.h"

namespace gdpa::activation {

/// The expression as text that parses back to it. What is longer than a screen is cut with "...": shared
/// subexpressions are written out wherever they are read.
std::string to_text(const Tree& tree, NodeId root);

}  // namespace gdpa::activation
