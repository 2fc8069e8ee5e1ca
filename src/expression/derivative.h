// The symbolic derivative of a tree, with the rules at kinks and ties that docs/functions.md lists.
#pragma once

#include "expression/tree.h"

namespace gdpa::activation {

/// Returns d(root)/d(variable) as a node of the same tree. The variable is the score or the node of a parameter.
NodeId differentiate(Tree& tree, NodeId root, NodeId variable);

}  // namespace gdpa::activation
