// The registry of kernel families, and the selection of a family for a problem.
#include <fmt/format.h>

#include "families/family.h"
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

}  // namespace

const Family& family_of(plan::KernelFamily family) {
  for (const Registered& one : registered) {
    if (one.key == family) return one.family();
  }
  throw Error(ErrorKind::runtime, "expected a registered kernel family; report this as a bug of gdpa");
}

plan::GpuPlan gpu_plan(const PlanRequest& request) {
  std::string refusals;
  for (const Registered& one : registered) {
    const Family& family = one.family();
    const std::string why_not = family.why_not(request);
    if (why_not.empty()) {
      plan::GpuPlan plan = family.plan(request);
      plan.reason += refusals;
      return plan;
    }
    refusals += fmt::format("; not the {} kernel: {}", family.title(), why_not);
  }
  throw Error(ErrorKind::runtime, "expected a kernel family that computes the problem, got none" + refusals);
}

}  // namespace gdpa::families
