// The door: everything about a call that can be wrong is found here, before anything is computed or written. What
// passes leaves as a Problem (what is asked) and Params (what a kernel receives); no code behind the door checks again.
#pragma once

#include "definition/params.h"
#include "definition/problem.h"
#include "gdpa/attention.h"

namespace gdpa::api {

struct CheckedCall {
  Problem problem;
  Params params;
};

/// The gradients that backward writes, and the one that it reads. An empty view is a gradient that is not wanted.
struct Gradients {
  const TensorView& output;
  const MutableTensorView& query;
  const MutableTensorView& key;
  const MutableTensorView& value;
};

CheckedCall check_forward(const Attention& attention, const MutableTensorView& output);
CheckedCall check_backward(const Attention& attention, const Gradients& gradients);

/// For planning alone: operands may have null data, and there are no outputs. `for_gpu`: they must fit a GPU, wherever
/// they are described to be.
CheckedCall check_plan(const Attention& attention, Direction direction, bool for_gpu = false,
                       const WantedGradients& wanted = {});

}  // namespace gdpa::api
