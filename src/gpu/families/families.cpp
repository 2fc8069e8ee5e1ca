// The list of kernel families, and the selection of a family for a call.
#include <fmt/format.h>

#include "gdpa/error.h"
#include "gpu/families/family.h"

namespace gdpa::gpu {
namespace {

/// In the order of preference.
constexpr const Family* families[] = {&hopper_family, &portable_family};

/// A family, and why the families before it were not selected.
struct Selected {
  const Family& family;
  std::string refusals;
};

/// Selects the first family that does not answer `why_not`.
Selected select(std::string (*Family::*why_not)(const Call&), const Call& call) {
  std::string refusals;
  for (const Family* const family : families) {
    const std::string reason = (family->*why_not)(call);
    if (reason.empty()) return {*family, refusals};
    refusals += fmt::format("; not the {} kernel: {}", family->title, reason);
  }
  throw Error(ErrorKind::runtime, "expected a kernel family that computes the problem, got none" + refusals);
}

}  // namespace

void add_attention(const Call& call, GpuPlan& plan) {
  const Selected selected = select(&Family::why_not, call);
  selected.family.add_attention(call, plan);
  plan.reason += selected.refusals;
}

void add_parameter_gradients(const Call& call, const ParameterGradientsForm& form, GpuPlan& plan) {
  const Selected selected = select(&Family::why_not_parameter_gradients, call);
  const bool is_alone = plan.launches.empty();  // otherwise the reason has the refusals of backward, which are the same
  selected.family.add_parameter_gradients(call, form, plan);
  plan.reason += is_alone ? "a kernel for the gradients of tensors" + selected.refusals
                          : "; the gradients of tensors have a kernel of their own";
}

}  // namespace gdpa::gpu
