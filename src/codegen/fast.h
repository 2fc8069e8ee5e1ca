// Rewrites a function for the approximations of the hardware. Operations are expressed by instructions of a GPU, and
// the resulting constants are combined with existing constants.
#pragma once

#include "expression/program.h"
#include "expression/rewrite/factors.h"

namespace gdpa::activation {

/// The two programs of a function, each with its own factors. Forward uses one program, and backward uses the other.
struct FastPrograms {
  FactoredProgram value;                 ///< results {f / value_factor}
  FactoredProgram value_and_derivative;  ///< results {f / value_factor, f'}
};

/// Rewrites `value` and `value_and_derivative` of one function. Both compute the same approximation of f, except for
/// the roundings of their factors. `value_factor` is the allowed factor of `value`, and `both_factor` is the allowed
/// factor of f in `value_and_derivative`, which may have more results. The results contain exp2, tanh and divisions
/// instead of exp, sigmoid and erf.
FastPrograms rewrite_fast(const Program& value, const Program& value_and_derivative, ValueFactor value_factor,
                          ValueFactor both_factor = ValueFactor::is_one, const HeadInputs& head = {});

/// Rewrites another program of the same function, such as its derivatives with respect to inputs, without factors.
/// `value` is the program of f, whose approximation the results contain.
Program rewrite_fast(const Program& value, const Program& program);

/// Returns one program with the results of both programs, for proofs about the two. Common subexpressions are one step.
/// With `is_fast`, the program is rewritten as by rewrite_fast(), but without factors. `value` is the program of f.
Program joined(const Program& value, const Program& one, const Program& other, bool is_fast);

}  // namespace gdpa::activation
