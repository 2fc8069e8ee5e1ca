// The factor of a head by which forward may multiply Q, in place of a multiplication of each score: f(s) = a s
// sigmoid(b s) is a / b times g(b s), where g(x) = x sigmoid(x) reads no number of the head.
#pragma once

#include <optional>

#include "activation/factors.h"
#include "activation/program.h"

namespace gdpa::activation {

/// A function of the score as g(h s) / h^degree.
struct QueryFactor {
  Program factor;    ///< h, a product of numbers of the head and of constants
  Program function;  ///< g, which reads no input
  int degree = 0;    ///< 0 or 1
};

/// Returns the factor of a program whose inputs are numbers of the head or the scale. Nothing if the program has no
/// such form, or has no input.
std::optional<QueryFactor> query_factor(const Program& program, const HeadInputs& head);

/// Returns the program with 1 in place of each input. A function with a QueryFactor then has the same shape, apart from
/// factors of the score and of the result.
Program with_ones(Program program);

}  // namespace gdpa::activation
