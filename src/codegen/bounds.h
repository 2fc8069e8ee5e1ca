// Prints the condition of a mask in interval arithmetic as CUDA C++.
#pragma once

#include <string>

#include "expression/function.h"

namespace gdpa::activation {

/// Returns a struct that derives from the struct of condition_source() (condition.h):
///     struct ConditionBounds : Condition {
///       // The elements of tensors that depend on the query alone, for all queries within these bounds
///       // (common/bounds.cuh). By a warp, whose lanes have the same queries and get the same result.
///       struct OfQueries;
///       __device__ OfQueries of_queries(const Bounds& query) const;
///       // The values of the condition for these queries and for all keys within these bounds. By each lane.
///       __device__ Bounds enclose(const Bounds& query, const Bounds& key, const OfQueries& of) const;
///     };
std::string condition_bounds_source(const Function& mask, unsigned tensor_types);

}  // namespace gdpa::activation
