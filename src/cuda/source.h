// The generated CUDA C++ source of a kernel. It contains the function and names one template instance of kernels/.
#pragma once

#include <string>

#include "activation/function.h"
#include "gdpa/activation.h"
#include "plan/gpu_plan.h"

namespace gdpa::cuda {

/// The names in a generated source: the kernel, and the constants for its launch.
struct SourceNames {
  static constexpr const char* kernel = "gdpa_kernel";
  static constexpr const char* threads = "gdpa_threads";            ///< int: of a CTA
  static constexpr const char* shared_bytes = "gdpa_shared_bytes";  ///< int: dynamic shared memory of a CTA
};

/// Returns the source of one kernel. `function` is f. Kernels that do not evaluate f ignore it.
std::string kernel_source(const plan::KernelSpec& kernel, const activation::Function& function);

/// Returns a description of the instance: "hopper: forward BFloat16 d=128 ...".
std::string describe(const plan::KernelSpec& kernel);

}  // namespace gdpa::cuda
