// The generated CUDA C++ source of a kernel. It contains the function and names one template instance of kernels/.
#pragma once

#include <string>

#include "expression/function.h"
#include "gdpa/activation.h"
#include "plan/gpu_plan.h"

namespace gdpa::cuda {

/// The names in a generated source: the kernel, and the constants for its launch.
struct SourceNames {
  static constexpr const char* kernel = "gdpa_kernel";
  static constexpr const char* threads = "gdpa_threads";            ///< int: of a CTA
  static constexpr const char* shared_bytes = "gdpa_shared_bytes";  ///< int: dynamic shared memory of a CTA
};

/// The expressions of a call: f, and the condition of the mask if the mask is no window.
struct Expressions {
  const activation::Function& function;
  const activation::Function* mask;

  // Implicit: most calls have a function only.
  Expressions(const activation::Function& function_, const activation::Function* mask_ = nullptr)  // NOLINT
      : function(function_), mask(mask_) {}
};

/// Whether a kernel of this kind evaluates the condition of a mask expression.
bool evaluates_condition(plan::KernelKind kind);

/// Returns the source of one kernel. Kernels that do not evaluate f or the mask ignore them.
std::string kernel_source(const plan::KernelSpec& kernel, const Expressions& expressions);

/// Returns a description of the instance: "hopper: forward BFloat16 d=128 ...".
std::string describe(const plan::KernelSpec& kernel);

}  // namespace gdpa::cuda
