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

/// Rounds accumulators into their gradient. They have `splits` partial results.
inline Launch reduce(const Call& call, const Accumulators& accumulators, int64_t splits) {
  const OperandShape& shape = accumulators.shape;
  const Reduce kernel{rounded_rows_for(call, shape.columns)};
  const int64_t ctas = ctas_of_rounded_rows(call, shape.rows * shape.heads, shape.columns);
  return Launch::of(kernel, ctas, [accumulators, shape, splits](const BoundCall& bound) {
    const Operand from = accumulators.operand(bound.workspace);
    portable::ReduceArguments arguments{};
    arguments.partials = static_cast<const float*>(from.data);
    arguments.splits = shape.form == Form::shared ? splits : 1;
    arguments.split_stride = shape.rows * from.row_stride;
    arguments.rows = shape.rows;
    arguments.rows_in_batch = std::max<int64_t>(1, shape.form == Form::dense ? accumulators.length : shape.rows);
    arguments.heads = shape.heads;
    arguments.output = bound.params.*accumulators.gradient;
    return arguments;
  });
}

}  // namespace gdpa::gpu
