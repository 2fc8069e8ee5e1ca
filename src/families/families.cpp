// The registry of kernel families, and the selection of a family for a problem.
#include <fmt/format.h>

#include "families/family.h"
#include "families/parameter_plan.h"
#include "families/portable/portable_plan.h"
#include "families/registry.h"
#include "gdpa/error.h"

namespace gdpa::families {
namespace {

struct Registered {
  plan::KernelFamily key;
  const Family& (*family)();
};

/// In the order of preference.
constexpr Registered registered[] = {
    {plan::KernelFamily::hopper, hopper_family},
    {plan::KernelFamily::portable, portable_family},
};

/// A family, and why the families before it were not selected.
struct Selected {
  const Family& family;
  std::string refusals;
};

/// Selects the first family for which why_not(family) is empty.
template <class WhyNot>
Selected select(const WhyNot& why_not) {
  std::string refusals;
  for (const Registered& one : registered) {
    const Family& family = one.family();
    const std::string reason = why_not(family);
    if (reason.empty()) return {family, refusals};
    refusals += fmt::format("; not the {} kernel: {}", family.title(), reason);
  }
  throw Error(ErrorKind::runtime, "expected a kernel family that computes the problem, got none" + refusals);
}

}  // namespace

const Family& family_of(plan::KernelFamily family) {
  for (const Registered& one : registered) {
    if (one.key == family) return one.family();
  }
  throw Error(ErrorKind::runtime, "expected a registered kernel family; report this as a bug of gdpa");
}

plan::GpuPlan gpu_plan(const PlanRequest& request) {
  const Selected selected = select([&](const Family& family) { return family.why_not(request); });
  plan::GpuPlan plan = selected.family.plan(request);
  plan.reason += selected.refusals;
  add_kernels_of_overlapping_keys(request, plan);
  return plan;
}

void add_parameter_gradients(const PlanRequest& request, const Params& params, const activation::Function& function,
                             plan::GpuPlan& plan) {
  if (request.problem.direction != Direction::backward || request.problem.wanted.parameters == 0) return;
  plan.parameter_sum =
      stored_term_for(request, params, function, plan).value_or(parameter_sum_for(request.problem, params, function));
  for (plan::GpuStep& step : plan.steps) {
    if (step.kernel.wanted_parameters != 0) step.kernel.parameter_sum = plan.parameter_sum;
  }
  const unsigned left = request.problem.wanted.parameters & ~plan.parameters_in_steps;
  if (left != 0) {
    const Selected selected = select([&](const Family& family) { return family.why_not_parameter_gradients(request); });
    const plan::KernelSpec kernel = parameter_kernel_for(request, left, plan.parameter_sum);
    selected.family.plan_parameter_gradients(request, params, function, kernel, plan);
    const bool is_alone = plan.steps.empty();  // otherwise the reason has the refusals of backward, which are the same
    plan.reason += is_alone ? "a kernel for the gradients of tensors" + selected.refusals
                            : "; the gradients of tensors have a kernel of their own";
  } else {
    plan.reason += "; the same kernel computes the gradients of tensors";
  }
  add_parameter_sums(request, params, plan);
  plan.deterministic = plan.deterministic && plan.parameter_sum == plan::ParameterSum::exact;
}

}  // namespace gdpa::families
