// The kernels of this process: found in memory, else in the cache on disk, else compiled; loaded on their device once.
#pragma once

#include <string>

#include "activation/function.h"
#include "cuda/driver.h"
#include "gdpa/activation.h"
#include "plan/gpu_plan.h"

namespace gdpa::cuda {

struct LoadedKernel {
  Kernel handle = nullptr;
  unsigned threads = 0;       ///< of a CTA
  unsigned shared_bytes = 0;  ///< dynamic shared memory of a CTA
  int registers = 0;          ///< of a thread
  int local_bytes = 0;        ///< of a thread: spills
};

/// The kernel on a device, whose context must be current. `stream` is asked whether a graph is being captured, in
/// which case a kernel that is not loaded yet is an Error (runtime) that says what to do before capturing.
const LoadedKernel& find_kernel(const plan::KernelSpec& spec, const activation::Function& function, Accuracy accuracy,
                                int device, Stream stream);

/// The cubin of a kernel for an architecture ("sm_90a"), from the cache or compiled into it. Needs no device.
std::string kernel_image(const plan::KernelSpec& spec, const activation::Function& function, Accuracy accuracy,
                         const std::string& architecture);

/// The architecture that kernels are compiled for on a device of this compute capability (10 * major + minor).
std::string architecture_of(int capability);

/// Compute capability and multiprocessors of a device; asked once.
const plan::Gpu& device_properties(int device);

}  // namespace gdpa::cuda
