// The host file of kernels/portable/add_rows.cuh, which adds Q to O, or dO to dQ, with Problem::add_query.
#pragma once

#include <algorithm>
#include <optional>

#include "gpu/kernels/rounded_rows.h"
#include "gpu/launch.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {

struct AddRows : RoundedRowsKernel {
  using Arguments = portable::AddRowsArguments;
  static constexpr KernelNames names = {"portable", "add_rows", "add_rows", "AddRowsArguments"};
  auto operator<=>(const AddRows&) const = default;
};

/// The last launch of a call; none if nothing is added.
inline std::optional<Launch> add_rows(const Call& call) {
  const bool is_forward = call.problem.direction == Direction::forward;
  if (!call.problem.add_query || (!is_forward && !call.problem.wanted.query)) return std::nullopt;
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
