// Guards that a value does not need: a bound of guard() may be there for the derivative alone, and a minimum costs as
// much as two products on a GPU.
#pragma once

#include "activation/tree.h"

namespace gdpa::activation {

/// The expression without those bounds of guard(s, low, high) beyond which its value is the same number without them,
/// infinities and NaN included. Only for values: the derivative must be taken before.
NodeId without_idle_guards(Tree& tree, NodeId root);

}  // namespace gdpa::activation
