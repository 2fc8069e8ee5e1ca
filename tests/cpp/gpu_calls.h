// Calls and plans for the tests of the GPU backend that need no GPU: a call without memory, and what its launches say.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gdpa/activation.h"
#include "gpu/kernels/hopper_backward.h"
#include "gpu/kernels/hopper_forward.h"
#include "gpu/kernels/hopper_parameter_gradients.h"
#include "gpu/kernels/hopper_wide_backward.h"
#include "gpu/kernels/key_schedule.h"
#include "gpu/kernels/portable_backward.h"
#include "gpu/kernels/portable_backward_query.h"
#include "gpu/kernels/portable_forward.h"
#include "gpu/kernels/portable_parameter_gradients.h"
#include "gpu/kernels/reduce.h"
#include "gpu/kernels/round_grad_query.h"
#include "gpu/plan.h"

namespace gdpa::gpu {

/// Functions that differ in what plans depend on: without guards, with registers for a long polynomial, with guards.
constexpr const char* plain = "relu";
constexpr const char* with_long_steps = "abs(s)^1.7";
constexpr const char* with_guards = "gelu_tanh";

/// A call whose operands have no addresses.
struct TestCall {
  Problem problem;
  Activation activation = Activation(plain);
  Params params = {};
  Gpu gpu = {};
  bool aligned = true;
  bool has_tensor_maps = true;

  GpuPlan plan() const {
    const Expressions expressions(activation.function());
    return plan_call({problem, params, expressions, gpu, aligned, has_tensor_maps});
  }
};

/// The launches of a plan that run a kernel.
inline std::vector<const Launch*> kernels_of(const GpuPlan& plan) {
  std::vector<const Launch*> launches;
  for (const Launch& launch : plan.launches) {
    if (!launch.clears()) launches.push_back(&launch);
  }
  return launches;
}

inline std::vector<std::string> names_of(const GpuPlan& plan) {
  std::vector<std::string> names;
  for (const Launch* launch : kernels_of(plan)) names.emplace_back(launch->kernel().names().name);
  return names;
}

/// Expects that every kernel of a plan is of this family.
inline void expect_family(const GpuPlan& plan, std::string_view family) {
  for (const Launch* launch : kernels_of(plan)) EXPECT_EQ(launch->kernel().names().family, family) << plan.reason;
}
inline std::string_view main_family(const GpuPlan& plan) {
  return plan.launches.at(plan.main_launch).kernel().names().family;
}

/// The launch of the n-th instance of a kernel in a plan. Fails the test if there is none.
template <class Spec>
const Launch& launch_of(const GpuPlan& plan, std::size_t n = 0) {
  for (const Launch& launch : plan.launches) {
    if (launch.as<Spec>() != nullptr && n-- == 0) return launch;
  }
  throw std::runtime_error("the plan has no " + std::string(Spec::names.name) + ": " +
                           testing::PrintToString(names_of(plan)));
}
template <class Spec>
const Spec& kernel_of(const GpuPlan& plan, std::size_t n = 0) {
  return *launch_of<Spec>(plan, n).template as<Spec>();
}
template <class Spec>
std::size_t count_of(const GpuPlan& plan) {
  return static_cast<std::size_t>(
      std::ranges::count_if(plan.launches, [](const Launch& launch) { return launch.as<Spec>() != nullptr; }));
}

/// Calls visit(spec) if the kernel is one of these.
template <class... Specs, class Visit>
void visit_as(const Kernel& kernel, Visit visit) {
  const auto visit_one = [&](const auto* spec) {
    if (spec != nullptr) visit(*spec);
  };
  (visit_one(kernel.as<Specs>()), ...);
}

template <class Visit>
void visit_portable(const Kernel& kernel, Visit visit) {
  visit_as<PortableForward, PortableBackward, PortableBackwardQuery, PortableParameterGradients>(kernel, visit);
}
template <class Visit>
void visit_hopper_backward(const Kernel& kernel, Visit visit) {
  visit_as<KeySchedule, HopperBackward, HopperWideBackward, RoundGradQuery>(kernel, visit);
}

/// The kernels of backward on Hopper in a plan.
inline std::vector<HopperBackwardKernel> hopper_backward_kernels(const GpuPlan& plan) {
  std::vector<HopperBackwardKernel> kernels;
  for (const Launch* launch : kernels_of(plan)) {
    visit_hopper_backward(launch->kernel(), [&](const HopperBackwardKernel& kernel) { kernels.push_back(kernel); });
  }
  return kernels;
}

/// A workspace at an address that is no memory.
inline std::byte* const test_workspace = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);

/// The offset in the workspace of an address; -1 for null.
inline int64_t offset_of(const void* address) {
  return address == nullptr ? -1 : static_cast<const std::byte*>(address) - test_workspace;
}

/// The arguments of a launch. The operands have no addresses.
template <class Spec>
typename Spec::Arguments arguments_of(const GpuPlan& plan, const Problem& problem, std::size_t n = 0) {
  const Params params;
  const CommonArguments common = plan.common_arguments(problem, params, test_workspace);
  alignas(Launch::argument_alignment) std::byte memory[Launch::most_argument_bytes];
  launch_of<Spec>(plan, n).fill({problem, params, common, test_workspace}, memory);
  return *reinterpret_cast<typename Spec::Arguments*>(memory);
}

/// The bytes of the workspace that a plan clears: the end of the last part.
inline int64_t end_of_cleared(const GpuPlan& plan, const Problem& problem) {
  const Params params;
  const CommonArguments common{};
  int64_t end = 0;
  for (const Launch& launch : plan.launches) {
    if (!launch.clears()) continue;
    const Cleared cleared = launch.cleared({problem, params, common, test_workspace});
    end = std::max(end, offset_of(cleared.data) + cleared.bytes);
  }
  return end;
}

}  // namespace gdpa::gpu
