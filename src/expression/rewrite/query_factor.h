// Some functions have the form f(s) = g(h s) / h^degree, up to a factor, where h depends only on numbers of the head.
// Forward can then multiply Q by h in place of each score. Example: a s sigmoid(b s) is a / b g(b s) with g(x) = x
// sigmoid(x).
#pragma once

#include <optional>

#include "expression/program.h"
#include "expression/rewrite/factors.h"

namespace gdpa::activation {

/// The parts of a function f(s) = g(h s) / h^degree.
struct QueryFactor {
  Program factor;    ///< h, computed from numbers of the head, constants and the scale
  Program function;  ///< g, which reads no input
  int degree = 0;    ///< 0 or 1
};

/// Returns this form of `program`. Returns std::nullopt if the program does not have this form, or if it reads an input
/// that is neither a number of the head nor the scale.
std::optional<QueryFactor> query_factor(const Program& program, const HeadInputs& head);

/// Returns the program with 1 in place of each input. If f has a QueryFactor, the result is c g(k s) with constants c
/// and k.
Program with_ones(Program program);

}  // namespace gdpa::activation
