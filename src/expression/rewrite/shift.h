// Finds functions of the form g(s + e), where e does not depend on the score: silu(s + table[h, i - j]) is silu of a
// sum. Everything that is known of g, a function of one number, then holds for f.
#pragma once

#include <optional>

#include "expression/tree.h"

namespace gdpa::activation {

/// f(s) = g(s + e).
struct Shift {
  Tree of_sum;       ///< the tree of g, without inputs
  NodeId root = 0;   ///< g in `of_sum`
  NodeId shift = 0;  ///< e in the tree of f
};

/// Returns g and e if the expression reads the score and its inputs only in one sum. Adds the nodes of e to the tree.
std::optional<Shift> find_shift(Tree& tree, NodeId root);

}  // namespace gdpa::activation
