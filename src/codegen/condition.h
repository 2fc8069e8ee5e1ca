// Prints the condition of a mask as CUDA C++: exactly, and in interval arithmetic.
#pragma once

#include <string>

#include "expression/function.h"

namespace gdpa::activation {

/// Returns the struct Condition of a mask (common/expression_mask.cuh). `tensor_types` is Problem::mask_types.
/// Positions and elements of tensors have their own types, so that conditions on whole numbers are exact.
///     struct Condition {
///       Condition(const gdpa::Params&, const gdpa::SequencePair&);
///       bool holds(int query, int key) const;
///       // Sets the valid columns of rows first_row and first_row + 8: the valid keys of two queries, or the valid
///       // queries of two keys, in the first `groups` groups. Words (common/fragment_columns.cuh) are 0 before. Where
///       // the valid columns of every row are one range, `columns` may be AllColumns, `valid` ranges, and `groups` 0.
///       static constexpr bool keys_are_range, queries_are_range;
///       template <int groups> void valid_keys(int first_row, const Columns& columns, Valid (&valid)[2]) const;
///       template <int groups> void valid_queries(int first_row, const Columns& columns, Valid (&valid)[2]) const;
///     };
/// A comparison is solved for the position of the columns where it is possible: `kv_idx <= q_idx + 3` for a query is a
/// bound of the keys, and needs no operation for each score. Comparisons that cannot be solved, such as `t[q_row] <
/// u[kv_row]`, are evaluated in a loop over the columns. Everything that does not depend on the column is computed once
/// for the row, and the elements that depend on the column alone are read once for both rows.
std::string condition_source(const Function& mask, unsigned tensor_types);

/// Returns the condition in interval arithmetic, as a struct that derives from the struct of condition_source():
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
