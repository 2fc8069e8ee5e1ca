// The main path: a call is checked, then handed to the backend of its device. Read this file first.
#include "gdpa/attention.h"

#include "api/checks.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "plan/cpu_plan.h"

namespace gdpa {
namespace {

void run(const Attention& attention, const api::CheckedCall& call) {
  const activation::Function& function = attention.activation.function();
  if (call.problem.device.kind == DeviceKind::cuda) {
    cuda::run(call.problem, call.params, function, attention.stream, attention.workspace);
  } else {
    cpu::run(call.problem, call.params, function);
  }
}

}  // namespace

void forward(const Attention& attention, const MutableTensorView& output) {
  run(attention, api::check_forward(attention, output));
}

void backward(const Attention& attention, const TensorView& grad_output, const MutableTensorView& grad_query,
              const MutableTensorView& grad_key, const MutableTensorView& grad_value) {
  run(attention, api::check_backward(attention, {grad_output, grad_query, grad_key, grad_value}));
}

int64_t workspace_bytes(const Attention& attention, Direction direction) {
  const api::CheckedCall call = api::check_plan(attention, direction);
  return call.problem.device.kind == DeviceKind::cuda ? cuda::workspace_bytes(call.problem, call.params) : 0;
}

Plan explain(const Attention& attention, Direction direction) {
  const api::CheckedCall call = api::check_plan(attention, direction);
  if (call.problem.device.kind == DeviceKind::cuda) {
    return cuda::explain(call.problem, call.params, attention.activation.function());
  }
  return plan::plan_for_cpu(call.problem, call.params, plan::this_processor());
}

}  // namespace gdpa
