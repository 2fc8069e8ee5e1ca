// The factors of a function: f(s) = b g(a s), so that g has fewer multiplications by constants. A kernel multiplies
// every score by `scale` and every output by `out_scale` anyway, so the factors a and b cost nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "expression/program.h"
#include "expression/tree.h"

namespace gdpa::activation {

/// The roots as functions of x = score_factor * s. The first root is divided by value_factor, and by the result of
/// head_factor if that has one.
struct FactoredProgram {
  double score_factor = 1;
  double value_factor = 1;
  Program program;
  Program head_factor = {};  ///< of inputs that are the same for all scores of a head
  bool takes_scale =
      false;  ///< x is Q K^T, and score_factor is 1. The program reads scale as the input HeadInputs::scale
  /// Of each root after the first one: its factor if it may have one, otherwise no step.
  std::vector<Program> other_factors = {};
  bool lacks_one = false;  ///< the second root is factor * (1 + r), and the program computes r
};

/// The inputs that are the same for all scores of a head. A product of them is computed once for a head, so they are
/// collected as factors, like constants. The struct also says what the reader of the other roots can do.
struct HeadInputs {
  std::vector<bool> are_of_head = {};   ///< for each input of the function
  std::size_t scale = 0;                ///< the input that stands for the scale, which is one of these factors
  std::size_t gradient = 0;             ///< the input that stands for dP, if roots are products with it
  std::vector<bool> take_factors = {};  ///< for each root after the first one, whether it may have a factor
  bool may_lack_one = false;            ///< whether the reader of the second root can add the 1 of lacks_one

  bool any() const { return std::find(are_of_head.begin(), are_of_head.end(), true) != are_of_head.end(); }
};

/// The allowed value_factor of the first root. In fp16, P must not be larger than f, because f overflows at 65504, and
/// not much smaller, because P loses bits below 6.1e-5. bfloat16 has the range of fp32.
enum class ValueFactor : std::uint8_t { is_one, suits_fp16, suits_bfloat16 };

/// Returns the roots with the factors that need the fewest instructions. The candidates come from the constants of the
/// roots. The factors are 1 if no candidate is cheaper. Constants change only by rounding.
///
/// f' of many functions is a sum with a number c: f' of silu contains 1/2. With f' = c (1 + r), dS = dP f' is
/// c (dP + dP r), so that the sum 1 + r needs no instruction. The second root may have this form (lacks_one) if `head`
/// allows it.
///
/// If any input is of a head, the scale of the scores is a factor as well (takes_scale), and the first root may have a
/// head_factor if value_factor is suits_bfloat16.
FactoredProgram factor(const Tree& tree, const std::vector<NodeId>& roots, ValueFactor value_factor,
                       const HeadInputs& head = {});

/// Returns factor * x. Existing constant factors of x absorb the factor: -x, c x, (c x)^2, c0 + c1 y, y (c0 + c1 z).
NodeId scaled(Tree& tree, double factor, NodeId x);

}  // namespace gdpa::activation
