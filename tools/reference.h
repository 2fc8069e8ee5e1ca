// The definition in fp64, not optimised for speed. `gdpa run` compares the library with it.
#pragma once

#include <vector>

#include "problem.h"
#include "workload.h"

namespace gdpa::tool {

struct Reference {
  std::vector<double> output, grad_query, grad_key, grad_value;
};

/// Reads the stored operands of `workload`. It shares only f and f' in fp64 with the library.
Reference compute_reference(const Problem& problem, const Workload& workload);

/// Returns the 2-norm of (got - expected) divided by the 2-norm of expected. The result is NaN if `got` contains NaN.
double relative_error(const std::vector<double>& got, const std::vector<double>& expected);

/// Returns the upper bound of relative_error for outputs of this type.
double promised_error(DType dtype);

}  // namespace gdpa::tool
