// Compiling ahead: the GPU kernels of a call, made and kept before the first call needs them, and what became of them.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "gdpa/attention.h"
#include "gdpa/export.h"
#include "gdpa/plan.h"

namespace gdpa {

/// One GPU kernel, as NVRTC made it.
struct CompiledKernel {
  GpuKernel kernel;
  bool was_cached = false;  ///< in the kernel cache on disk, or in this process
  double seconds = 0;       ///< that finding or compiling it took
  std::string compiler;     ///< the version of the NVRTC that compiled it: "13.2.86"
  std::string source;       ///< the CUDA C++ that was generated for it
  std::string image;        ///< the cubin
};

/// For which lengths kernels are compiled ahead.
enum class Lengths {
  any,   ///< all kernels that the call can need with any lengths, number of batch entries and number of heads
  these  ///< the kernels of the call as it is
};

struct CompileOptions {
  std::string architecture = {};  ///< "sm_80", "sm_90a"; empty: the GPU of the operands
  Lengths lengths = Lengths::any;

  /// Called with the number of kernels that are done and the number of all, first with 0 and then after each kernel, by
  /// one thread at a time. An exception that it throws ends the compilation: kernels that have not begun are left out,
  /// and compile() throws that exception.
  std::function<void(int64_t done, int64_t total)> progress = {};

  WantedGradients wanted = {};  ///< backward: the gradients that the later calls compute
};

/// Compiles the kernels of forward or backward, as many at a time as the machine has processors, and keeps them in the
/// kernel cache. Nothing is computed. Operands may have null data, which counts as aligned to 16 bytes.
///
/// Which kernels a call runs depends on lengths: some serve short sequences, others long ones. Lengths::any compiles
/// all of them, so that no later call with other lengths waits for the compiler, fails in a CUDA graph capture, or has
/// to be compiled in the middle of a training run. All else must be as in the later calls: types, head_dim, the ratio
/// of query heads to key heads, forms (jagged, dense, shared), function, scale, mask, kind of out_scale, accuracy,
/// determinism, and whether rows begin at multiples of 16 bytes. Gradients are taken to be contiguous.
///
/// Without an architecture the kernels are loaded on the GPU of the operands too: a call that is captured into a CUDA
/// graph afterwards finds them. With one no GPU is needed: the cache is filled for machines that have it, and the
/// operands may be described as if in host memory. Operands on the CPU and no architecture: there is nothing to
/// compile, and the result is empty.
///
/// Returns each kernel once, those of the call as it is first; the others have 0 in GpuKernel::ctas. Throws Error as
/// forward and backward do, Error (value) for an architecture that is unknown, and Error (runtime) where NVRTC is
/// missing or refuses the source.
///
///     for (const gdpa::CompiledKernel& made : gdpa::compile(attention, gdpa::Direction::backward,
///                                                           {.architecture = "sm_90a"}))
///       std::printf("%s: %.2f s\n", made.kernel.name.c_str(), made.seconds);
GDPA_API std::vector<CompiledKernel> compile(const Attention& attention, Direction direction,
                                             const CompileOptions& options = {});

/// compile() in a thread of its own. get() throws its errors. The destructor of the future waits for the thread. The
/// memory that the views of `attention` point at must stay valid until the future is ready.
///
///     std::future<std::vector<gdpa::CompiledKernel>> kernels =
///         gdpa::compile_async(attention, gdpa::Direction::backward);
///     load_data();
///     kernels.get();
GDPA_API std::future<std::vector<CompiledKernel>> compile_async(const Attention& attention, Direction direction,
                                                                const CompileOptions& options = {});

}  // namespace gdpa
