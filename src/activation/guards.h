// Guards that a value does not need: a bound of guard() may be there for the derivative alone, or for infinite scores
// alone, and a minimum costs as much as two products on a GPU. A guard goes only where intervals prove that no score
// needs it (prove.h); where the proof fails, the guard stays.
#pragma once

#include "activation/program.h"
#include "activation/tree.h"

namespace gdpa::activation {

/// The expression without those bounds of guard(s, low, high) beyond which its value is the same number without them,
/// infinities and NaN included. Only for values: the derivative must be taken before.
NodeId without_idle_guards(Tree& tree, NodeId root);

/// An expression less the bounds that only an infinite score needs, where infinity times 0 is NaN without them. Beyond
/// them it has levelled out: f(s) is `root` of min(max(s, scores.low), scores.high) for every s, and `root` of s itself
/// for every finite s of fp32.
struct Unguarded {
  NodeId root;
  Range scores;  ///< infinite on a side that lost no bound
};

/// To the precision of fp64. Only for values, as above.
Unguarded without_guards_at_infinity(Tree& tree, NodeId root);

/// An expression without any bound of guard(): of values and derivatives alike.
NodeId without_guards(Tree& tree, NodeId root);

}  // namespace gdpa::activation
