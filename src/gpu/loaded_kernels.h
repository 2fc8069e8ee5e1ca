// The kernels of this process. A kernel comes from memory, from the cache on disk, or from the compiler, and is loaded
// on its device. The missing kernels of one call are compiled at the same time.
//
// The number of loaded kernels is limited, so that their code does not fill the memory of the GPU. If more than
// most_loaded_kernels() are loaded, the least recently used kernels are unloaded. A kernel in a captured CUDA graph
// stays loaded, because the graph may be launched at any time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gdpa/compile.h"
#include "gpu/driver.h"
#include "gpu/kernel.h"
#include "gpu/launch.h"

namespace gdpa::gpu {

struct LoadedKernel {
  KernelHandle handle = nullptr;
  unsigned threads = 0;       ///< of a CTA
  unsigned shared_bytes = 0;  ///< dynamic shared memory of a CTA
};

/// Some kernels; null for a launch without a kernel. They stay loaded at least for the lifetime of this list.
using LoadedKernels = std::vector<std::shared_ptr<const LoadedKernel>>;

/// The kernels of the launches of a call on a stream. They stay loaded until the work that was launched on the stream
/// during the lifetime of this object has ended.
class KernelsOfCall {
 public:
  /// The context of the device must be current.
  KernelsOfCall(LoadedKernels kernels, int device, Stream stream, bool is_captured);
  KernelsOfCall(const KernelsOfCall&) = delete;
  KernelsOfCall& operator=(const KernelsOfCall&) = delete;
  ~KernelsOfCall();

  const LoadedKernel& operator[](std::size_t launch) const { return *kernels_[launch]; }

 private:
  LoadedKernels kernels_;
  Stream stream_;
  Event end_;  ///< null during a capture: the kernels of a graph are never unloaded
};

/// Returns the limit of loaded kernels: GDPA_LOADED_KERNELS, which is read once, or 512. Throws Error (value) if the
/// variable is not a number above 0.
std::size_t most_loaded_kernels();

/// Returns the kernels of launches on a device. The context of the device must be current. If `stream` is captured into
/// a CUDA graph and a kernel is not loaded, throws Error (runtime) with a remedy.
KernelsOfCall find_kernels(const std::vector<Launch>& launches, const Expressions& expressions, int device,
                           Stream stream);

/// Returns kernels for an architecture ("sm_90a"), from the cache on disk or from the compiler. Needs
/// no device.
std::vector<CompiledKernel> compile_kernels(const std::vector<Kernel>& kernels, const Expressions& expressions,
                                            const std::string& architecture);

/// Loads compiled kernels on a device, so that find_kernels finds them. The context of the device must
/// be current.
LoadedKernels load_kernels(const std::vector<Kernel>& kernels, const std::vector<CompiledKernel>& compiled,
                           const Expressions& expressions, int device);

/// Runs compile_kernels ahead of a call. The process compiles at most as many kernels at a time as the machine has
/// processors, and calls `progress` after each kernel (CompileOptions::progress).
std::vector<CompiledKernel> compile_ahead(const std::vector<Kernel>& kernels, const Expressions& expressions,
                                          const std::string& architecture,
                                          const std::function<void(int64_t, int64_t)>& progress);

}  // namespace gdpa::gpu
