// Interval arithmetic over a Program. Its statements hold for every score of a range, whereas samples test only some
// scores.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "expression/program.h"

namespace gdpa::activation {

/// All numbers from `low` to `high`, inclusive, and NaN if `may_be_nan`. The ends may be infinite. -0 lies
/// below +0, so that an interval also tells the sign of a zero.
template <class Real>
struct Interval {
  Real low = 0;
  Real high = 0;
  bool may_be_nan = false;

  static Interval point(Real number) { return {number, number, std::isnan(number)}; }
  static Interval whole() {
    return {-std::numeric_limits<Real>::infinity(), std::numeric_limits<Real>::infinity(), true};
  }

  bool contains(Real number) const { return low <= number && number <= high; }
  /// The smallest and the largest absolute value.
  Real mignitude() const { return contains(0) ? 0 : std::min(std::fabs(low), std::fabs(high)); }
  Real magnitude() const { return std::max(std::fabs(low), std::fabs(high)); }
};

/// The program's results, as fp32 or fp64 arithmetic computes them, for every score of an interval. Sums, products,
/// quotients and roots are rounded to the nearest number, which keeps order. The implementations of elementary
/// functions that gdpa calls are as monotone as their definitions, and the rules rely on this. For an interval of one
/// score, the results equal the results of evaluate() and evaluate_in_fp32().
template <class Real>
std::vector<Interval<Real>> enclose(const Program& program, Interval<Real> scores);

/// The same for all steps.
template <class Real>
std::vector<Interval<Real>> enclose_steps(const Program& program, Interval<Real> scores);

/// The first result of a program that does not read the score, for all numbers of its inputs in these intervals, as any
/// fp64 arithmetic computes it: the results of operations that may be rounded differently are wider.
Interval<double> enclose_outward(const Program& program, const std::vector<Interval<double>>& inputs);

/// A value and its derivative with respect to the score.
struct ValueAndSlope {
  Interval<double> value;
  Interval<double> slope;
};

/// The program's first result and its derivative as real numbers, without rounding, for every score of an interval:
/// ends are rounded outward. The derivative follows the definition of each operation, so that 1 - tanh^2 does not lose
/// its digits where tanh is near 1. At a kink the derivative is the interval between the slopes of both sides.
ValueAndSlope enclose_derivative(const Program& program, Interval<double> scores);

}  // namespace gdpa::activation
