// The rewriting of a function for the hardware's approximations: what a GPU has as one instruction is said with it,
// and the constants that this brings are folded into those that are there.
#pragma once

#include "activation/factors.h"
#include "activation/program.h"

namespace gdpa::activation {

/// `value` and `value_and_derivative` of one function, rewritten alike: both compute the same approximation of f, given
/// a multiple of the score. Afterwards there is no exp, sigmoid and erf: exp2, tanh and divisions stand in their place.
FactoredPrograms rewrite_fast(const Program& value, const Program& value_and_derivative);

}  // namespace gdpa::activation
