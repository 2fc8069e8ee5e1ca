// The test whether forward may multiply Q by scale in the operand's type, which rounds Q a second time, instead of
// multiplying every score in fp32.
#pragma once

#include "expression/program.h"

namespace gdpa::activation {

/// Returns whether a bound on f guarantees that a second rounding of Q stays within the promise of docs/accuracy.md.
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
