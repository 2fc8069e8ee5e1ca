// Which multiple of the score a function wants to be given. A kernel multiplies every score by `scale` anyway, so that
// a factor taken in there costs nothing, and the function loses its multiplications by constants.
#pragma once

#include "activation/program.h"
#include "activation/tree.h"

namespace gdpa::activation {

/// f and {f, f'} in terms of x = score_factor * s, which costs the fewest instructions of the factors that the
/// function's own constants suggest; 1 where none is cheaper.
struct FactoredPrograms {
  double score_factor = 1;
  Program value;
  Program value_and_derivative;
};

/// The nodes are functions of the score, f and {f, f'} of one function. Constants change by rounding only.
FactoredPrograms factor(const Tree& tree, NodeId value, NodeId value_beside_derivative, NodeId derivative);

/// factor * x, with the factor taken into constants that x multiplies by anyway: -x, c x, (c x)^2, c0 + c1 y,
/// y (c0 + c1 z).
NodeId scaled(Tree& tree, double factor, NodeId x);

/// A number times something.
bool is_term(const Tree& tree, NodeId id);

}  // namespace gdpa::activation
