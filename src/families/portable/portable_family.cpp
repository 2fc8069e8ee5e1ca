// The portable kernels: mma.sync and cp.async, which every supported GPU has.
#include <fmt/format.h>

#include <string_view>

#include "families/family.h"
#include "families/portable/portable_plan.h"
#include "families/registry.h"

namespace gdpa::families {
namespace {

using plan::KernelKind;

/// The name of a layout in the device code.
struct LayoutInSource {
  std::string_view name;
  std::string_view header;
};

LayoutInSource layout_of(const plan::KernelSpec& kernel) {
  if (kernel.has_pages) return {"PagedLayout", "common/paged_layout.cuh"};
  if (kernel.owns_rows) return {"RowsLayout", "common/rows_layout.cuh"};
  if (kernel.has_batch_map) return {"MappedLayout", "common/mapped_layout.cuh"};
  return {"PackedLayout", "common/packed_layout.cuh"};
}

class PortableFamily final : public Family {
 public:
  std::string_view name() const override { return "portable"; }
  std::string_view title() const override { return "portable"; }

  std::string why_not(const PlanRequest& /*request*/) const override { return {}; }

  plan::GpuPlan plan(const PlanRequest& request) const override { return portable_plan(request); }

  std::string why_not_parameter_gradients(const PlanRequest& /*request*/) const override { return {}; }

  void plan_parameter_gradients(const PlanRequest& request, const Params& /*params*/,
                                const activation::Function& function, plan::KernelSpec kernel,
                                plan::GpuPlan& plan) const override {
    add_portable_parameter_gradients(request, function, kernel, plan);
  }

  std::string_view activation(const plan::KernelSpec& kernel) const override {
    return kernel.kind == KernelKind::forward ? "::Activation" : "::ActivationWithDerivative";
  }

  void write_config(ConfigText& config, const plan::KernelSpec& kernel,
                    const activation::Function& /*function*/) const override {
    const LayoutInSource layout = layout_of(kernel);
    if (kernel.has_output_offsets) config.include("common/output_offsets.cuh");
    config.type_of_header("Layout", layout_text("gdpa::", layout.name, kernel), layout.header);
    config.number("ctas", kernel.ctas);
    config.number(kernel.kind == KernelKind::backward ? "key_warps" : "warps", kernel.warps);
    config.number("column_warps", kernel.portable().column_warps);
    if (kernel.kind == KernelKind::backward) {
      config.flag("reduce_grad_query", kernel.portable().reduce_grad_query);
      config.flag("computes_grad_key", kernel.wants_grad_key);
      config.flag("computes_grad_value", kernel.wants_grad_value);
      config.flag("keys_shared", kernel.keys_shared);
    }
    if (kernel.kind == KernelKind::backward_query) config.flag("queries_shared", kernel.portable().queries_shared);
  }

  void launch(const PlannedCall& call, StepLauncher& launcher) const override {
    CommonArguments arguments = call.arguments;
    for (std::size_t step = 0; step < call.plan.steps.size(); ++step) launcher.launch_next(&arguments);
  }

  void launch_parameter_gradients(const PlannedCall& call, StepLauncher& launcher) const override {
    CommonArguments arguments = call.arguments;
    launcher.launch_next(&arguments);
  }

  bool has_random_delays() const override { return false; }
};

}  // namespace

const Family& portable_family() {
  static const PortableFamily family;
  return family;
}

}  // namespace gdpa::families
