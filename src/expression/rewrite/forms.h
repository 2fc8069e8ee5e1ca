// The forms of a function that spare a kernel work: homogeneous, a function of a sum or of a multiple of the score, and
// tolerant of a second rounding of Q.
#pragma once

#include <optional>

#include "expression/program.h"
#include "expression/rewrite/factors.h"
#include "expression/tree.h"

namespace gdpa::activation {

/// Returns p if f(c s) = c^p f(s) for every c > 0 follows from the steps of the program, as for relu, abs and s^2: a
/// positive factor of the score can be moved out of such a homogeneous function.
std::optional<double> degree_of(const Program& value);

/// f(s) = g(s + e), where e does not depend on the score: silu(s + table[h, i - j]) is silu of a sum. Everything that
/// is known of g, a function of one number, then holds for f.
struct Shift {
  Tree of_sum;       ///< the tree of g, without inputs
  NodeId root = 0;   ///< g in `of_sum`
  NodeId shift = 0;  ///< e in the tree of f
};

/// Returns g and e if the expression reads the score and its inputs only in one sum. Adds the nodes of e to the tree.
std::optional<Shift> find_shift(Tree& tree, NodeId root);

/// The parts of a function f(s) = g(h s) / h^degree, up to a factor, where h depends only on numbers of the head.
/// Forward can then multiply Q by h in place of each score. Example: a s sigmoid(b s) is a / b g(b s) with g(x) = x
/// sigmoid(x).
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

/// Returns whether forward may multiply Q by scale in the operand's type, which rounds Q a second time, instead of
/// multiplying every score in fp32: whether a bound on f guarantees that this stays within the promise of
/// docs/accuracy.md.
///
/// A relative rounding error delta of the elements of Q changes a score by about delta * sigma, where sigma is the
/// standard deviation of the scores, wherever the score itself lies. P then changes by f' * delta * sigma. For scores
/// that are distributed symmetrically around 0, the relative change of P is at most delta * sqrt(G / H) for every
/// sigma, with
///     G = the largest value of f'(s)^2 + f'(-s)^2,   H = the least value of (f(s)^2 + f(-s)^2) / s^2.
/// This function bounds G and H by interval arithmetic over all scores of fp32, and requires that G / H is at most 5.5.
/// The rounding of P and O to the operand's type alone has an error of sqrt(2) delta, and PyTorch's error is at least
/// as large; with 5.5 forward's error is below sqrt(2 + 5.5) delta, which is less than twice that.
///
/// G / H is 2.58 for gelu and gelu_tanh, 2.44 for silu, and 1 for relu. A function that is steep somewhere, or bounded
/// (tanh, exp, sin, s * exp(-s * s)), has no such bound: at a large scale its output depends on few scores near the
/// steep part. `value` is the program of f.
///
/// For f(s) = g(s + e), `value` is the program of g. PyTorch then rounds s, and its error of P is about
/// g' * delta * |s|. If e moves the scores so that P depends on few of them, these scores have large |s|, and PyTorch's
/// error is the larger one.
/// With silu and gelu, sigma of 1, 10 and 100, and e of 0, 3 sigma, -3 sigma, N(0, sigma^2), -s + N(0, 1) and
/// -|i - j| / 4, the error of O with a rounded Q is at most .49 of the promise (head_dim 128, 512 keys, in fp64 with
/// bf16 roundings).
bool tolerates_rounded_query(const Program& value);

}  // namespace gdpa::activation
