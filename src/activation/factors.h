// The factors of a function: f(s) = b g(a s), so that g has fewer multiplications by constants. A kernel multiplies
// every score by `scale` and every output by `out_scale` anyway, so the factors a and b cost nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "activation/program.h"
#include "activation/tree.h"

namespace gdpa::activation {

/// The roots as functions of x = score_factor * s. The first root is divided by value_factor.
struct FactoredProgram {
  double score_factor = 1;
  double value_factor = 1;
  Program program;
};

/// The allowed value_factor of the first root. In fp16, P must not be larger than f, because f overflows at 65504, and
/// not much smaller, because P loses bits below 6.1e-5. bfloat16 has the range of fp32.
enum class ValueFactor : std::uint8_t { is_one, suits_fp16, suits_bfloat16 };

/// Returns the roots with the factors that need the fewest instructions. The candidates come from the constants of the
/// roots. The factors are 1 if no candidate is cheaper. Constants change only by rounding.
FactoredProgram factor(const Tree& tree, const std::vector<NodeId>& roots, ValueFactor value_factor);

/// Returns factor * x. Existing constant factors of x absorb the factor: -x, c x, (c x)^2, c0 + c1 y, y (c0 + c1 z).
NodeId scaled(Tree& tree, double factor, NodeId x);

/// A number times a node.
bool is_term(const Tree& tree, NodeId id);

}  // namespace gdpa::activation
