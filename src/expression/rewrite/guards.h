// Removal of guards that a value does not need. Some bounds of guard() only serve the derivative or infinite scores,
// and a minimum costs as much as two products on a GPU. A guard is removed only if intervals prove that no score needs
// it (prove.h).
#pragma once

#include "expression/program.h"
#include "expression/tree.h"

namespace gdpa::activation {

/// Removes the bounds of guard(s, low, high) that do not change the value of the expression for any score, including
/// infinity. The derivative depends on guards and must be derived before.
NodeId without_idle_guards(Tree& tree, NodeId root);

/// An expression without the bounds that only an infinite score needs, because infinity times 0 is NaN without them.
/// The expression is constant beyond these bounds: f(s) is `root` of min(max(s, scores.low), scores.high) for every s,
/// and `root` of s itself for every finite s of fp32.
struct Unguarded {
  NodeId root;
  Range scores;  ///< infinite on a side where no bound was removed
};

/// The two are equal to the precision of fp64. The derivative must be derived before.
Unguarded without_guards_at_infinity(Tree& tree, NodeId root);

/// Removes all bounds of guard(), from a value or a derivative.
NodeId without_guards(Tree& tree, NodeId root);

}  // namespace gdpa::activation
