// Some functions have the form f(s) = g(h s) / h^degree, up to a factor, where h depends only on numbers of the head.
// Forward can then multiply Q by h in place of each score. Example: a s sigmoid(b s) is a / b g(b s) with g(x) = x
// sigmoid(x).
#pragma once

#include <optional>

#include "activation/factors.h"
#include "activation/program.h"

namespace gdpa::activation {

/// A function of the score as g(h s) / h^degree.
struct QueryFactor {
  Program factor;    ///< h, computed from numbers of the head, constants and the scale
  Program function;  ///< g, which reads no input
  int degree = 0;    ///< 0 or 1
};

/// Returns the factor of a program whose inputs are numbers of the head or the scale. Nothing if the program has no
/// such form, or has no input.
std::optional<QueryFactor> query_factor(const Program& program, const HeadInputs& head);

/// Returns the program with 1 in place of each input. If f has a QueryFactor, the result is c g(k s) with constants c
/// and k.
Program with_ones(Program program);

}  // namespace gdpa::activation
