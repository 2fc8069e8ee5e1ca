// The host file of kernels/portable/reduce.cuh, which rounds fp32 accumulators into a gradient.
#pragma once

#include <algorithm>

#include "gpu/kernels/rounded_rows.h"
#include "gpu/plan.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {

struct Reduce : RoundedRowsKernel {
  using Arguments = portable::ReduceArguments;
  static constexpr KernelNames names = {"portable", "reduce", "reduce", "ReduceArguments"};
  auto operator<=>(const Reduce&) const = default;
};

/// Rounds accumulators into the gradient `gradient` of the call. They have `splits` partial results.
inline Launch reduce(const Call& call, const Accumulators& accumulators, Operand Params::*gradient, int64_t splits) {
  const Reduce kernel{rounded_rows_for(call, accumulators.columns)};
  const int64_t ctas = ctas_of_rounded_rows(call, accumulators.rows * accumulators.heads, accumulators.columns);
  return Launch::of(kernel, ctas, [accumulators, gradient, splits](const BoundCall& bound) {
    const Operand from = accumulators.operand(bound.workspace);
    const int64_t rows = std::max<int64_t>(1, accumulators.rows);
    portable::ReduceArguments arguments{};
    arguments.partials = static_cast<const float*>(from.data);
    arguments.splits = accumulators.form == Form::shared ? splits : 1;
    arguments.split_stride = accumulators.rows * from.row_stride;
    arguments.rows = accumulators.rows;
    arguments.rows_in_batch = accumulators.form == Form::dense ? std::max<int64_t>(1, accumulators.length) : rows;
    arguments.heads = accumulators.heads;
    arguments.output = bound.params.*gradient;
    return arguments;
  });
}

}  // namespace gdpa::gpu
