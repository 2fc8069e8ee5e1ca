// The host file of kernels/portable/reduce.cuh, which rounds fp32 accumulators into a gradient.
#pragma once

#include "gpu/kernels/attention.h"
#include "gpu/plan.h"
#include "portable/arguments.cuh"

namespace gdpa::gpu {

struct Reduce {
  GpuElement element = GpuElement::bfloat16;  ///< of the gradient
  int columns = 0;
  bool aligned = false;

  using Arguments = portable::ReduceArguments;
  static constexpr KernelNames names = {"portable", "reduce", "reduce", "ReduceArguments"};
  static constexpr bool reads_function = false, reads_mask = false;
  auto operator<=>(const Reduce&) const = default;
  std::string description() const;
  SourceParts source(const Expressions& expressions) const;
};

/// Rounds accumulators into the gradient `gradient` of the call. They have `splits` partial results.
Launch reduce(const Call& call, const Accumulators& accumulators, Operand Params::*gradient, int64_t splits);

}  // namespace gdpa::gpu
