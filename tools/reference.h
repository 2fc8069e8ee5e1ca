// The definition, written out in fp64 without a thought of speed: what `gdpa run` holds the library against.
#pragma once

#include <vector>

#include "problem.h"
#include "workload.h"

namespace gdpa::tool {

struct Reference {
  std::vector<double> output, grad_query, grad_key, grad_value;
};

/// Reads the operands of `workload` as they are stored. Shares nothing with the library but f and f' in fp64.
Reference compute_reference(const Problem& problem, const Workload& workload);

/// The 2-norm of (got - expected), relative to that of expected; NaN where got has one.
double relative_error(const std::vector<double>& got, const std::vector<double>& expected);

/// What relative_error may be at most, for outputs of this type.
double promised_error(DType dtype);

}  // namespace gdpa::tool
