// The kernels of this process: found in memory, else in the cache on disk, else compiled and loaded on their device.
// The kernels of one call that have to be compiled are compiled at the same time.
//
// A process that meets many functions does not fill the GPU's memory with code: beyond most_loaded_kernels() the
// kernels that were used longest ago are unloaded. A kernel that was launched into a CUDA graph stays, since the graph
// may be launched at any time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
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

/// The kernels of the steps of a call. They stay loaded at least as long as this list lives.
using LoadedKernels = std::vector<std::shared_ptr<const LoadedKernel>>;

/// How many kernels stay loaded: GDPA_LOADED_KERNELS, read once, or 512. Throws Error (value) where that is no number
/// above 0.
std::size_t most_loaded_kernels();

/// The kernels of the steps on a device, whose context must be current. `stream` is asked whether a graph is being
/// captured, in which case a kernel that is not loaded yet is an Error (runtime) that says what to do before capturing.
LoadedKernels find_kernels(const std::vector<plan::GpuStep>& steps, const activation::Function& function, int device,
                           Stream stream);

/// The kernels of the steps for an architecture ("sm_90a"), from the cache on disk or compiled into it. Needs no
/// device.
std::vector<CompiledKernel> compile_kernels(const std::vector<plan::GpuStep>& steps,
                                            const activation::Function& function, const std::string& architecture);

/// Loads compiled kernels of these steps on a device, whose context must be current, for find_kernels to find.
LoadedKernels load_kernels(const std::vector<plan::GpuStep>& steps, const std::vector<CompiledKernel>& compiled,
                           const activation::Function& function, int device);

/// compile_kernels ahead of a call: at most as many kernels at a time as there are processors, in the whole process,
/// and `progress` is told of each one (CompileOptions::progress).
std::vector<CompiledKernel> compile_ahead(const std::vector<plan::GpuStep>& steps, const activation::Function& function,
                                          const std::string& architecture,
                                          const std::function<void(int64_t, int64_t)>& progress);

}  // namespace gdpa::cuda
