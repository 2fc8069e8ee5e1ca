// One operation on doubles, with the standard library. It folds constants in the tree and evaluates a Program for
// Activation::value. src/cpu has the vectorised evaluator.
#pragma once

#include "expression/program.h"

namespace gdpa::activation {

/// Returns the value of an operation. 1 and 0 mean true and false. Not for constant and score, which compute nothing.
double apply(Operation operation, double a, double b = 0, double c = 0);

/// Whether the result of the operation is one of its operands, its negative, or a small integer, so that arithmetic in
/// any precision gives it without rounding.
bool is_exact(Operation operation);

/// The same in fp32, as on a GPU but without the errors of elementary functions: a result that overflows on a GPU also
/// overflows here.
float apply_in_fp32(Operation operation, float a, float b = 0, float c = 0);

}  // namespace gdpa::activation
