// The public functions. Each checks the call and passes it to the backend of its device. Read this file first.
#include "gdpa/attention.h"

#include <algorithm>

#include "api/checks.h"
#include "api/norm_checks.h"
#include "cpu/backend.h"
#include "cpu/mask.h"
#include "gdpa/compile.h"
#include "gdpa/norm.h"
#include "gpu/backend.h"
#include "gpu/kernels/norm.h"
#include "plan/cpu_plan.h"
#include "plan/work.h"

namespace gdpa {
namespace {

bool is_on_gpu(const CheckedCall& call) { return call.problem.device.kind == DeviceKind::cuda; }

const activation::Function* mask_of(const Attention& attention) {
  return attention.mask_expression ? &attention.mask_expression->function() : nullptr;
}

const activation::Function& function_of(const Attention& attention, const CheckedCall& call) {
  return call.function ? *call.function : attention.activation.function();
}

gpu::Expressions expressions_of(const Attention& attention, const CheckedCall& call) {
  return {function_of(attention, call), mask_of(attention)};
}

void run(const Attention& attention, const CheckedCall& call) {
  if (is_on_gpu(call)) {
    gpu::run(call.problem, call.params, expressions_of(attention, call), attention.stream, attention.workspace);
  } else {
    cpu::run(call.problem, call.params, function_of(attention, call), mask_of(attention));
  }
}

int64_t workspace_bytes(const Attention& attention, const CheckedCall& call) {
  if (!is_on_gpu(call)) return 0;
  return gpu::workspace_bytes(call.problem, call.params, expressions_of(attention, call));
}

double flops_on_cpu(const Attention& attention, const CheckedCall& call) {
  const std::vector<Parameter>& tensors = attention.mask_parameters;
  const bool has_data =
      std::all_of(tensors.begin(), tensors.end(), [](const Parameter& tensor) { return tensor.value.data != nullptr; });
  if (!attention.mask_expression || !has_data) return plan::flops_of(call.problem, call.params);
  return plan::flops_of_scores(call.problem, cpu::kept_scores(*mask_of(attention), call.params));
}

}  // namespace

void forward(const Attention& attention, const MutableTensorView& output) {
  run(attention, api::check_forward(attention, output));
}

void backward(const Attention& attention, const TensorView& grad_output, const MutableTensorView& grad_query,
              const MutableTensorView& grad_key, const MutableTensorView& grad_value,
              const std::vector<ParameterGradient>& grad_parameters, const MutableTensorView& grad_out_scale) {
  run(attention,
      api::check_backward(attention, {grad_output, grad_query, grad_key, grad_value, grad_parameters, grad_out_scale}));
}

int64_t workspace_bytes(const Attention& attention, Direction direction, const WantedGradients& wanted) {
  return workspace_bytes(attention, api::check_plan(attention, direction, false, wanted));
}

int64_t workspace_bytes(const Attention& attention, const TensorView& grad_output, const MutableTensorView& grad_query,
                        const MutableTensorView& grad_key, const MutableTensorView& grad_value,
                        const std::vector<ParameterGradient>& grad_parameters,
                        const MutableTensorView& grad_out_scale) {
  return workspace_bytes(attention, api::check_backward(attention, {grad_output, grad_query, grad_key, grad_value,
                                                                    grad_parameters, grad_out_scale}));
}

std::vector<CompiledKernel> compile(const Attention& attention, Direction direction, const CompileOptions& options) {
  const bool is_for_device = options.architecture.empty();
  const CheckedCall call = api::check_plan(attention, direction, !is_for_device, options.wanted);
  if (!is_on_gpu(call) && is_for_device) return {};
  return gpu::compile(call.problem, call.params, expressions_of(attention, call), options);
}

std::future<std::vector<CompiledKernel>> compile_async(const Attention& attention, Direction direction,
                                                       const CompileOptions& options) {
  return std::async(std::launch::async, [=] { return compile(attention, direction, options); });
}

double flops(const Attention& attention, Direction direction, const WantedGradients& wanted) {
  const CheckedCall call = api::check_plan(attention, direction, false, wanted);
  return is_on_gpu(call) ? plan::flops_of_mean_lengths(call.problem, call.params) : flops_on_cpu(attention, call);
}

Plan explain(const Attention& attention, Direction direction, const std::string& architecture,
             const WantedGradients& wanted) {
  const CheckedCall call = api::check_plan(attention, direction, !architecture.empty(), wanted);
  if (is_on_gpu(call) || !architecture.empty()) {
    Plan plan = gpu::explain(call.problem, call.params, expressions_of(attention, call), architecture);
    if (attention.mask_expression && !is_on_gpu(call)) plan.flops = flops_on_cpu(attention, call);
    return plan;
  }
  Plan plan = plan::plan_for_cpu(call.problem, call.params, plan::this_processor());
  plan.flops = flops_on_cpu(attention, call);
  return plan;
}

void norm(const Norm& norm, const MutableTensorView& y, const MutableTensorView& statistics) {
  api::check_norm_forward(norm, y, statistics);
  gpu::run_norm(norm, y, statistics);
}

void norm_backward(const Norm& norm, const TensorView& grad_y, const TensorView& statistics,
                   const NormGradients& gradients) {
  api::check_norm_backward(norm, grad_y, statistics, gradients);
  gpu::run_norm_backward(norm, grad_y, statistics, gradients);
}

int64_t norm_workspace_bytes(const Norm& norm, const NormGradients& gradients) {
  api::check_norm(norm, false);
  return gpu::norm_workspace_bytes(norm, gradients);
}

}  // namespace gdpa
