// The source of a kernel: generated CUDA C++ that contains the function and names one template instance of kernels/.
#pragma once

#include <string>

#include "activation/function.h"
#include "gdpa/activation.h"
#include "plan/gpu_plan.h"

namespace gdpa::cuda {

/// The names that a generated source defines: the kernel, and constants of the module that say how to launch it.
struct SourceNames {
  static constexpr const char* kernel = "gdpa_kernel";
  static constexpr const char* threads = "gdpa_threads";            ///< int: of a CTA
  static constexpr const char* shared_bytes = "gdpa_shared_bytes";  ///< int: dynamic shared memory of a CTA
};

/// The source of one kernel. `function` is f; kernels that do not evaluate f ignore it.
std::string kernel_source(const plan::KernelSpec& kernel, const activation::Function& function);

/// The instance in words: "hopper: forward BFloat16 d=128 ...".
std::string describe(const plan::KernelSpec& kernel);

}  // namespace gdpa::cuda
