// The addition of Q to O, or of dO to dQ, with Problem::add_query, and the host file of kernels/portable/add_rows.cuh,
// which adds after the attention kernels if their epilogue does not.
#pragma once

#include <algorithm>

#include "gpu/kernels/rounded_rows.h"
#include "gpu/launch.h"
#include "gpu/sequences.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {

struct AddRows : RoundedRowsKernel {
  using Arguments = portable::AddRowsArguments;
  static constexpr KernelNames names = {"portable", "add_rows", "add_rows", "AddRowsArguments"};
  auto operator<=>(const AddRows&) const = default;
};

/// Whether a result of the call is a sum with an addend.
inline bool has_addend(const Problem& problem) {
  return problem.add_query && (problem.direction == Direction::forward || problem.wanted.query);
}

/// Whether the epilogue of attention kernels may add the addend (kernels/common/epilogues.cuh). These kernels
/// then write all rows of the result: it has no rows that clear_gaps fills, and no keys overlap.
inline bool epilogue_may_add(const Problem& problem) {
  return has_addend(problem) && !locates_queries(problem) &&
         (problem.direction == Direction::forward || !problem.has_key_gaps);
}

/// The last launch of a call with an addend.
inline Launch add_rows(const Call& call) {
  const bool is_forward = call.problem.direction == Direction::forward;
  const AddRows kernel{rounded_rows_for(call, call.problem.head_dim)};
  const int64_t ctas = ctas_of_rounded_rows(call, call.problem.rows_q * call.problem.heads_q, call.problem.head_dim);
  return Launch::of(kernel, ctas, [is_forward](const BoundCall& bound) {
    const Problem& problem = bound.problem;
    const Params& params = bound.params;
    const bool is_dense = problem.query_form == Form::dense;
    return portable::AddRowsArguments{
        problem.rows_q, std::max<int64_t>(1, is_dense ? params.queries.length : problem.rows_q), problem.heads_q,
        is_forward ? params.output : params.grad_query, is_forward ? params.query : params.grad_output};
  });
}

}  // namespace gdpa::gpu
