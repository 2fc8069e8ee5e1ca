// The kernels of this process: found in memory, else in the cache on disk, else compiled; loaded on their device once.
// The kernels of one call that have to be compiled are compiled at the same time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "activation/function.h"
#include "cuda/driver.h"
#include "cuda/target.h"
#include "gdpa/activation.h"
#include "gdpa/compile.h"
#include "plan/gpu_plan.h"

namespace gdpa::cuda {

struct LoadedKernel {
  Kernel handle = nullptr;
  unsigned threads = 0;       ///< of a CTA
  unsigned shared_bytes = 0;  ///< dynamic shared memory of a CTA
};

/// The kernels of the steps on a device, whose context must be current. `stream` is asked whether a graph is being
/// captured, in which case a kernel that is not loaded yet is an Error (runtime) that says what to do before capturing.
std::vector<const LoadedKernel*> find_kernels(const std::vector<plan::GpuStep>& steps,
                                              const activation::Function& function, Accuracy accuracy, int device,
                                              Stream stream);

/// The kernels of the steps for an architecture ("sm_90a"), from the cache on disk or compiled into it. Needs no
/// device.
std::vector<CompiledKernel> compile_kernels(const std::vector<plan::GpuStep>& steps,
                                            const activation::Function& function, Accuracy accuracy,
                                            const std::string& architecture);

/// Loads compiled kernels of these steps on a device, whose context must be current, for find_kernels to find.
void load_kernels(const std::vector<plan::GpuStep>& steps, const std::vector<CompiledKernel>& compiled,
                  const activation::Function& function, Accuracy accuracy, int device);

/// compile_kernels ahead of a call: at most as many kernels at a time as there are processors, in the whole process,
/// and `progress` is told of each one (CompileOptions::progress).
std::vector<CompiledKernel> compile_ahead(const std::vector<plan::GpuStep>& steps, const activation::Function& function,
                                          Accuracy accuracy, const std::string& architecture,
                                          const std::function<void(int64_t, int64_t)>& progress);

}  // namespace gdpa::cuda
