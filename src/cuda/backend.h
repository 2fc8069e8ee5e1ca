// The CUDA backend's door: what a call needs, and the call. Kernels are launched on the caller's stream; the host waits
// for nothing.
#pragma once

#include <string>
#include <vector>

#include "activation/function.h"
#include "definition/params.h"
#include "definition/problem.h"
#include "gdpa/attention.h"
#include "gdpa/compile.h"
#include "gdpa/plan.h"
#include "plan/gpu_plan.h"

namespace gdpa::cuda {

/// Launches what `problem` asks. Where `workspace` is null and memory is needed, it is taken from the stream's pool
/// and given back to it.
void run(const Problem& problem, const Params& params, const activation::Function& function, void* stream,
         const Workspace& workspace);

/// Device memory that run needs beyond inputs and outputs.
int64_t workspace_bytes(const Problem& problem, const Params& params, const activation::Function& function);

/// The kernels that the problem needs, each once: those of the call first, then, with Lengths::any, those that it needs
/// with other lengths, another number of batch entries or of heads. Their work is 0.
std::vector<plan::GpuStep> steps_ahead(const Problem& problem, const Params& params,
                                       const activation::Function& function, const plan::Gpu& gpu, Lengths lengths);

/// Compiles these kernels for options.architecture. Without an architecture they are those of the problem's device, and
/// are loaded there, even while a CUDA graph is being captured.
std::vector<CompiledKernel> compile(const Problem& problem, const Params& params, const activation::Function& function,
                                    const CompileOptions& options);

/// The plan in words, with what its compiled kernels need; for the problem's device, or for an architecture. Cumulative
/// lengths are read from the problem's device, which may then be the CPU.
Plan explain(const Problem& problem, const Params& params, const activation::Function& function,
             const std::string& architecture);

}  // namespace gdpa::cuda
