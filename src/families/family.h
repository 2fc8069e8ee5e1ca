// The interface of a kernel family: kernels that share a folder of kernels/ and the host code that plans and launches
// them. docs/kernels/add-a-kernel-family.md says how to add one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/arguments.cuh"
#include "common/bias_tile.cuh"
#include "definition/params.h"
#include "definition/problem.h"
#include "expression/function.h"
#include "families/config_text.h"
#include "plan/gpu_plan.h"

namespace gdpa::families {

/// Everything that a plan depends on.
struct PlanRequest {
  const Problem& problem;
  plan::Gpu gpu;
  plan::FunctionRegisters function;
  bool aligned;  ///< every row of every operand begins at a multiple of 16 bytes
  plan::Float32Products products;
  plan::TensorMaps tensor_maps = plan::TensorMaps::unavailable;
  bool has_guards = false;            ///< f or f' has guards that a first pass of backward may leave out (hopper::Pass)
  int reads = 0;                      ///< elements of tensors that f reads at each score
  int reads_of_lines = 0;             ///< of these, elements that depend only on the key or the difference i - j
  bool reads_query_position = false;  ///< f depends on the batch entry, or on the position of a query
  bool reads_numbers = false;         ///< f reads tensors without an index
  unsigned number_gradients = 0;      ///< wanted gradients that a backward kernel may compute (parameter_plan.h)
  unsigned score_gradients = 0;       ///< the same, of sums of dS
  bool own_elements = false;          ///< an element in score_gradients has one term, of one score
  bool shares_pairs = false;          ///< f reads an element for each pair of positions that all batch entries share
  bool bounds_scores = false;         ///< f has guards, which only infinite scores need
  int lookups = 0;                    ///< lookups that a kernel may copy to shared memory (expression/lookup.h)
  int tile_element_bytes = 0;         ///< of a dense bias that a kernel may copy to shared memory; 0: none
  BiasTile bias_tile = BiasTile::none;  ///< the form of that bias
};

/// Launches the kernels of a plan one after the other. The CUDA backend implements it.
class StepLauncher {
 public:
  /// Launches the next kernel of the plan. `arguments` points to the struct that the kernel takes.
  virtual void launch_next(void* arguments) = 0;

 protected:
  ~StepLauncher() = default;
};

/// A planned call, with device addresses.
struct PlannedCall {
  const Problem& problem;
  const plan::GpuPlan& plan;
  const CommonArguments& arguments;
  std::byte* workspace;  ///< device memory of plan.workspace.bytes bytes

  /// The device address `offset` bytes after the start of the workspace.
  template <class T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(workspace + offset);
  }
};

class Family {
 public:
  virtual ~Family() = default;

  /// The folder of kernels/ and the namespace of the device code: "hopper".
  virtual std::string_view name() const = 0;

  /// The name in sentences: "Hopper".
  virtual std::string_view title() const = 0;

  /// Why the kernels of the family cannot compute a problem, in words that `gdpa explain` prints; empty if they can.
  virtual std::string why_not(const PlanRequest& request) const = 0;

  /// The plan of a problem for which why_not() is empty. A pure function: it uses neither the driver nor the lengths of
  /// jagged sequences. Throws Error (runtime) if the GPU has too little shared memory.
  virtual plan::GpuPlan plan(const PlanRequest& request) const = 0;

  /// Why the kernel of the family for the gradients of tensors cannot compute a problem; empty if it can.
  virtual std::string why_not_parameter_gradients(const PlanRequest& request) const = 0;

  /// Adds the step of this kernel to plan.parameter_steps, for a problem for which why_not_parameter_gradients() is
  /// empty. `kernel` has the members that do not depend on the family.
  virtual void plan_parameter_gradients(const PlanRequest& request, const Params& params,
                                        const activation::Function& function, plan::KernelSpec kernel,
                                        plan::GpuPlan& plan) const = 0;

  /// The type in the generated source that evaluates f, or f and f', in a kernel that does.
  virtual std::string_view activation(const plan::KernelSpec& kernel) const = 0;

  /// Writes the members of the kernel's Config that are not the same for all families.
  virtual void write_config(ConfigText& config, const plan::KernelSpec& kernel,
                            const activation::Function& function) const = 0;

  /// Launches all kernels of call.plan.steps in order, with the arguments and the tensor maps that they take.
  virtual void launch(const PlannedCall& call, StepLauncher& launcher) const = 0;

  /// Launches the kernel for the gradients of tensors, the first of call.plan.parameter_steps. The gradients in
  /// call.arguments are the sums.
  virtual void launch_parameter_gradients(const PlannedCall& call, StepLauncher& launcher) const = 0;

  /// Whether the kernels contain the delays of GDPA_RANDOM_DELAYS=1 (kernels/common/random_delay.cuh).
  virtual bool has_random_delays() const = 0;
};

/// The family that a kernel belongs to.
const Family& family_of(plan::KernelFamily family);

/// Selects the kernels of a problem: the plan of the first family in the order of preference that can compute it. The
/// plan's reason says why the preferred families cannot. Nothing else in gdpa selects a kernel.
plan::GpuPlan gpu_plan(const PlanRequest& request);

/// Adds the kernels of problem.wanted.parameters to a plan, and their sums to its workspace. The family of the kernel
/// is selected in the same way.
void add_parameter_gradients(const PlanRequest& request, const Params& params, const activation::Function& function,
                             plan::GpuPlan& plan);

}  // namespace gdpa::families
