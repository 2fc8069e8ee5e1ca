// Which multiple of the score a function wants to be given, and which multiple of itself it then gives. A kernel
// multiplies every score by `scale` and every output by `out_scale` anyway, so that factors taken in there cost
// nothing, and the function loses its multiplications by constants.
#pragma once

#include <cstdint>
#include <vector>

#include "activation/program.h"
#include "activation/tree.h"

namespace gdpa::activation {

/// The roots, in terms of x = score_factor * s, and the first of them divided by value_factor.
struct FactoredProgram {
  double score_factor = 1;
  double value_factor = 1;
  Program program;
};

/// Whether the first root may be given as a multiple of itself. A weight of fp16 may not be greater than f, which
/// overflows at 65504, nor much less: it loses bits below 6.1e-5. bfloat16 has the range of fp32.
enum class ValueFactor : std::uint8_t { is_one, suits_fp16, suits_bfloat16 };

/// The roots, functions of the score, with the factors that cost the fewest instructions of those that their own
/// constants suggest; 1 where none is cheaper. Constants change by rounding only.
FactoredProgram factor(const Tree& tree, const std::vector<NodeId>& roots, ValueFactor value_factor);

/// factor * x, with the factor taken into constants that x multiplies by anyway: -x, c x, (c x)^2, c0 + c1 y,
/// y (c0 + c1 z).
NodeId scaled(Tree& tree, double factor, NodeId x);

/// A number times something.
bool is_term(const Tree& tree, NodeId id);

}  // namespace gdpa::activation
