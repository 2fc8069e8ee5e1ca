// Compiling ahead: the GPU kernels of a call, made and kept before the first call needs them, and what became of them.
#pragma once

#include <cstdint>
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

/// Compiles every kernel that forward or backward needs for this problem, all at the same time, and keeps them in the
/// kernel cache; nothing is computed. The kernels depend on types, head_dim, forms, function and alignment, not on
/// lengths, and on scale only in that a function like relu, where relu(c s) = c relu(s), has one for a positive scale
/// and one for others: operands may have null data, which counts as aligned to 16 bytes.
///
/// Without `architecture` it is the GPU of the operands, and the kernels are loaded there too: a call that is captured
/// into a CUDA graph afterwards finds them. With one ("sm_80", "sm_90a") no GPU is needed: the cache is filled for
/// machines that have it, and the operands may be described as if in host memory. Operands on the CPU and no
/// architecture: there is nothing to compile, and the result is empty.
///
/// Throws Error as forward and backward do, Error (value) for an architecture that is unknown, and Error (runtime)
/// where NVRTC is missing or refuses the source.
///
///     for (const gdpa::CompiledKernel& made : gdpa::compile(attention, gdpa::Direction::backward, "sm_90a"))
///       std::printf("%s: %.2f s\n", made.kernel.name.c_str(), made.seconds);
GDPA_API std::vector<CompiledKernel> compile(const Attention& attention, Direction direction,
                                             const std::string& architecture = "");

}  // namespace gdpa
