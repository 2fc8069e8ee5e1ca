// The checks of a call. They find every mistake in the arguments that the host can see, before anything is computed or
// written, and convert the arguments to a Problem (the properties of the call) and Params (the arguments of a kernel).
// No later code checks the arguments again.
#pragma once

#include "definition/problem.h"
#include "expression/function.h"
#include "gdpa/attention.h"

namespace gdpa::api {

/// The gradient that backward reads, `output`, and the gradients that it writes. An empty view is a gradient that is
/// not wanted.
struct Gradients {
  const TensorView& output;
  const MutableTensorView& query;
  const MutableTensorView& key;
  const MutableTensorView& value;
  std::vector<ParameterGradient> parameters = {};
  MutableTensorView out_scale = {};
};

CheckedCall check_forward(const Attention& attention, const MutableTensorView& output);
CheckedCall check_backward(const Attention& attention, const Gradients& gradients);

/// Checks a call without outputs, for its plan. Operands may have null data unless `needs_data`. With `for_gpu`, the
/// checks also include the conditions of the GPU kernels, although the operands may be on the CPU.
CheckedCall check_plan(const Attention& attention, Direction direction, bool for_gpu = false,
                       const WantedGradients& wanted = {}, bool needs_data = false);

}  // namespace gdpa::api
