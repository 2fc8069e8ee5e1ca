// The main path: a call is checked, then handed to the backend of its device. Read this file first.
#include "gdpa/attention.h"

#include "api/checks.h"
#include "cpu/backend.h"
#include "plan/cpu_plan.h"

namespace gdpa {

void forward(const Attention& attention, const MutableTensorView& output) {
  const api::CheckedCall call = api::check_forward(attention, output);
  cpu::run(call.problem, call.params, attention.activation.function());
}

void backward(const Attention& attention, const TensorView& grad_output, const MutableTensorView& grad_query,
              const MutableTensorView& grad_key, const MutableTensorView& grad_value) {
  const api::CheckedCall call = api::check_backward(attention, {grad_output, grad_query, grad_key, grad_value});
  cpu::run(call.problem, call.params, attention.activation.function());
}

Plan explain(const Attention& attention, Direction direction) {
  const api::CheckedCall call = api::check_plan(attention, direction);
  return plan::plan_for_cpu(call.problem, call.params, plan::this_processor());
}

}  // namespace gdpa
