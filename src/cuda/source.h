// The source of a kernel: generated CUDA C++ that carries the function and names one template instance of kernels/.
#pragma once

#include <string>

#include "activation/function.h"
#include "gdpa/activation.h"
#include "plan/gpu_plan.h"

namespace gdpa::cuda {

/// The names that a generated source defines: the kernel, and how it wants to be launched, as constants of the module.
struct SourceNames {
  static constexpr const char* kernel = "gdpa_kernel";
  static constexpr const char* threads = "gdpa_threads";            ///< int: of a CTA
  static constexpr const char* shared_bytes = "gdpa_shared_bytes";  ///< int: dynamic shared memory of a CTA
};

/// Whether kernels of this kind evaluate the function.
bool has_function(plan::KernelKind kind);

std::string kernel_source(const plan::KernelSpec& kernel, const activation::Function& function);

/// What identifies the instance to a person: "hopper: forward BFloat16 d=128 ...".
std::string describe(const plan::KernelSpec& kernel);

}  // namespace gdpa::cuda
