// Prints the condition of a mask in interval arithmetic as CUDA C++.
#pragma once

#include <string>

#include "activation/function.h"

namespace gdpa::activation {

/// Returns a struct that derives from the struct of condition_source() (cuda_inputs.h):
///     struct ConditionBounds : Condition {
///       // The values of the condition for all queries and all keys within these bounds (common/bounds.cuh).
///       __device__ Bounds enclose(const Bounds& query, const Bounds& key) const;
///     };
std::string condition_bounds_source(const Function& mask, unsigned tensor_types);

}  // namespace gdpa::activation
