// The error of a result in the 2-norm, and the largest error that docs/accuracy.md promises.
#pragma once

#include <vector>

#include "gdpa/tensor.h"

namespace gdpa::tool {

/// Returns the 2-norm of (got - expected) divided by the 2-norm of expected. The result is NaN if `got` contains NaN.
/// `squares` is for sums whose terms may cancel: the divisor is not smaller than its root.
double relative_error(const std::vector<double>& got, const std::vector<double>& expected, double squares = 0);

/// Returns the constant c of docs/accuracy.md: the upper bound of relative_error for outputs of this type, unless the
/// same computation in the type has an error of the same size.
double promised_error(DType dtype, bool allow_tf32 = false);

}  // namespace gdpa::tool
