// See tolerates_rounded_query() in forms.h.
#include "expression/rewrite/forms.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "expression/lower.h"
#include "expression/rewrite/interval.h"

namespace gdpa::activation {

namespace {

constexpr double most_ratio = 5.5;

/// Bounds of G and H, from the pieces seen so far.
struct Bounds {
  double largest_slopes = 0;                                      ///< at least G
  double least_values = std::numeric_limits<double>::infinity();  ///< at most H

  bool holds() const { return largest_slopes <= most_ratio * least_values; }
};

double square(double x) { return x * x; }

/// Adds the pieces [low, high] and [-high, -low]. If f(0) = 0, f(s) / s is a slope between 0 and s, so with
/// `is_at_zero` the bound of H comes from slopes.
void add_piece(Bounds& bounds, const Program& value, double low, double high, bool is_at_zero) {
  const ValueAndSlope right = enclose_derivative(value, {low, high}), left = enclose_derivative(value, {-high, -low});
  const auto is_number = [](const ValueAndSlope& x) { return !x.value.may_be_nan && !x.slope.may_be_nan; };
  if (!is_number(right) || !is_number(left)) {
    bounds = {std::numeric_limits<double>::infinity(), 0};
    return;
  }
  bounds.largest_slopes =
      std::max(bounds.largest_slopes, square(right.slope.magnitude()) + square(left.slope.magnitude()));
  const double values = is_at_zero ? square(right.slope.mignitude()) + square(left.slope.mignitude())
                                   : (square(right.value.mignitude()) + square(left.value.mignitude())) / square(high);
  bounds.least_values = std::min(bounds.least_values, values);
}

}  // namespace

bool tolerates_rounded_query(const Program& value) {
  // Slopes change most at moderate scores, so the pieces are narrow there.
  constexpr double smallest = 0x1p-10, moderate = 0x1p6, largest = std::numeric_limits<float>::max();
  const double narrow = std::exp2(1.0 / 32), wide = std::exp2(1.0 / 4);
  Bounds bounds;
  // The piece begins above 0 and so excludes a kink at 0, as in relu.
  add_piece(bounds, value, std::numeric_limits<double>::denorm_min(), smallest, evaluate(value, 0)[0] == 0);
  for (double low = smallest; low < largest && bounds.holds();) {
    const double high = std::min(low * (low < moderate ? narrow : wide), largest);
    add_piece(bounds, value, low, high, false);
    low = high;
  }
  return bounds.holds();
}

}  // namespace gdpa::activation
