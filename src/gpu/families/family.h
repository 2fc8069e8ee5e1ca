// The interface of a kernel family: kernels that share a folder of kernels/. A family has a folder of src/gpu/families
// with its plans, the host files of its kernels in src/gpu/kernels, and one entry in the list of families.cpp.
// docs/kernels/add-a-kernel-family.md says how to add one.
#pragma once

#include <string>
#include <string_view>

#include "gpu/call.h"
#include "gpu/parameter_sums.h"
#include "gpu/plan.h"

namespace gdpa::gpu {

struct Family {
  std::string_view title;  ///< in sentences: "Hopper"

  /// Why the kernels of the family cannot compute a call, in words that `gdpa explain` prints; empty if they can.
  std::string (*why_not)(const Call& call);

  /// Adds the launches of a call for which why_not() is empty, their memory and the reason for them. A pure function:
  /// it uses neither the driver nor the lengths of jagged sequences. Throws Error (runtime) if the GPU has too little
  /// shared memory.
  void (*add_attention)(const Call& call, GpuPlan& plan);

  /// The same for the kernel of the gradients of tensors.
  std::string (*why_not_parameter_gradients)(const Call& call);
  void (*add_parameter_gradients)(const Call& call, const ParameterGradientsForm& form, GpuPlan& plan);
};

extern const Family hopper_family, portable_family;

/// Adds the kernels of the first family, in the order of preference, that can compute a call. The plan's reason says
/// why the preferred families cannot. Nothing else in gdpa selects a family.
void add_attention(const Call& call, GpuPlan& plan);
void add_parameter_gradients(const Call& call, const ParameterGradientsForm& form, GpuPlan& plan);

}  // namespace gdpa::gpu
