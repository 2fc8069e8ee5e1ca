// The rewriting of a function for the hardware's approximations: what a GPU has as one instruction is said with it,
// and the constants that this brings are folded into those that are there.
#pragma once

#include "activation/factors.h"
#include "activation/program.h"

namespace gdpa::activation {

/// The two programs of one function. Each has its own factors: forward reads the one, backward the other.
struct FastPrograms {
  FactoredProgram value;                 ///< results {f / value_factor}
  FactoredProgram value_and_derivative;  ///< results {f / value_factor, f'}
};

/// `value` and `value_and_derivative` of one function, rewritten alike: both compute the same approximation of f, but
/// for the rounding of their factors. `value_factor` is what that of the first may be. Afterwards there is no exp,
/// sigmoid and erf: exp2, tanh and divisions stand in their place. `both_factor` is what that of f beside f' may be.
FastPrograms rewrite_fast(const Program& value, const Program& value_and_derivative, ValueFactor value_factor,
                          ValueFactor both_factor = ValueFactor::is_one);

/// One program with the results of both, for proofs about the two: what the programs share is one step. It is rewritten
/// as rewrite_fast() does it, but without factors, where `is_fast`. `value` is f's program.
Program joined(const Program& value, const Program& one, const Program& other, bool is_fast);

}  // namespace gdpa::activation
