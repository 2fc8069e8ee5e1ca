// The symbolic derivative of a tree, with the rules at kinks and ties that docs/functions.md lists.
#pragma once

#include "activation/tree.h"

namespace gdpa::activation {

/// d(root)/d(variable) as a node of the same tree, where the variable is the score or a parameter's node.
NodeId differentiate(Tree& tree, NodeId root, NodeId variable);

}  // namespace gdpa::activation
