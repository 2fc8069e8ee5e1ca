// The host file of kernels/portable/reduce.cuh, which rounds fp32 accumulators into a gradient.
#pragma once

#include "gpu/kernels/rounded_rows.h"
#include "gpu/plan.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {

struct Reduce : RoundedRowsKernel {
  using Arguments = portable::ReduceArguments;
  static constexpr KernelNames names = {"portable", "reduce", "reduce", "ReduceArguments"};
  auto operator<=>(const Reduce&) const = default;
  std::string description() const { return describe(names); }
};

/// Rounds accumulators into the gradient `gradient` of the call. They have `splits` partial results.
Launch reduce(const Call& call, const Accumulators& accumulators, Operand Params::*gradient, int64_t splits);

}  // namespace gdpa::gpu
