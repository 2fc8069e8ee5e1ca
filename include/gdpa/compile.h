// Compiling ahead: gdpa::compile compiles the GPU kernels of a call before the first call needs them.
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

/// One compiled GPU kernel.
struct CompiledKernel {
  GpuKernel kernel;
  bool was_cached = false;  ///< whether the kernel cache on disk or this process had the kernel already
  double seconds = 0;       ///< time to find or to compile the kernel
  std::string compiler;     ///< the version of the NVRTC that compiled it: "13.2.86"
  std::string source;       ///< the generated CUDA C++
  std::string image;        ///< the cubin
};

/// The calls that compile() compiles kernels for.
enum class Lengths {
  any,   ///< calls with any lengths, number of batch entries and number of heads
  these  ///< calls with the lengths, batch entries and heads of the given call
};

struct CompileOptions {
  std::string architecture = {};  ///< "sm_80", "sm_90a"; empty: the GPU of the operands
  Lengths lengths = Lengths::any;

  /// Called with the number of finished kernels and the number of all kernels: once before the first kernel, and after
  /// each kernel, by one thread at a time. If it throws an exception, no further kernel is started, and compile()
  /// throws that exception.
  std::function<void(int64_t done, int64_t total)> progress = {};

  WantedGradients wanted = {};  ///< backward: the gradients that the later calls compute
};

/// Compiles the kernels of forward or backward and stores them in the kernel cache. It computes nothing. It compiles
/// one kernel on each processor of the machine at a time. Operands may have null data. A null pointer counts as aligned
/// to 16 bytes.
///
/// The kernels of a call depend on the lengths of its sequences. With Lengths::any, compile() compiles all kernels that
/// a call with other lengths can need, so that no later call waits for the compiler or fails during the capture of a
/// CUDA graph. These properties must be equal in later calls: types, head_dim, the ratio of query heads to key heads,
/// forms (jagged, dense, shared), function, scale, mask, kind of out_scale, accuracy, determinism, and whether rows
/// begin at multiples of 16 bytes. compile() assumes contiguous gradients.
///
/// Without an architecture, compile() also loads the kernels on the GPU of the operands, so a call that is captured
/// into a CUDA graph later finds them. If the operands are on the CPU, there is nothing to compile, and the result is
/// empty. With an architecture, no GPU is needed, and the operands may be on the CPU.
///
/// Returns each kernel once. The kernels of the given call come first; the others have GpuKernel::ctas = 0. Throws
/// Error for the same reasons as forward and backward, Error (value) for an unknown architecture, and Error (runtime)
/// if NVRTC is missing or rejects the source.
///
///     for (const gdpa::CompiledKernel& made : gdpa::compile(attention, gdpa::Direction::backward,
///                                                           {.architecture = "sm_90a"}))
///       std::printf("%s: %.2f s\n", made.kernel.name.c_str(), made.seconds);
GDPA_API std::vector<CompiledKernel> compile(const Attention& attention, Direction direction,
                                             const CompileOptions& options = {});

/// Runs compile() in a new thread. get() of the future throws its errors, and the destructor of the future waits for
/// the thread. The memory that the views of `attention` point to must stay valid until the future is ready.
///
///     std::future<std::vector<gdpa::CompiledKernel>> kernels =
///         gdpa::compile_async(attention, gdpa::Direction::backward);
///     load_data();
///     kernels.get();
GDPA_API std::future<std::vector<CompiledKernel>> compile_async(const Attention& attention, Direction direction,
                                                                const CompileOptions& options = {});

}  // namespace gdpa
