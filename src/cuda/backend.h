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

namespace gdpa::cuda {

/// Launches what `problem` asks. Where `workspace` is null and memory is needed, it is taken from the stream's pool
/// and given back to it.
void run(const Problem& problem, const Params& params, const activation::Function& function, void* stream,
         const Workspace& workspace);

/// Device memory that run needs beyond inputs and outputs.
int64_t workspace_bytes(const Problem& problem, const Params& params, const activation::Function& function);

/// The kernels of a call, compiled at the same time. Without an architecture they are those of the problem's device,
/// and are loaded there; `stream` is asked whether a graph is being captured.
std::vector<CompiledKernel> compile(const Problem& problem, const Params& params, const activation::Function& function,
                                    const std::string& architecture, void* stream);

/// The plan in words, with what its compiled kernels need; for the problem's device, or for an architecture. Cumulative
/// lengths are read from the problem's device, which may then be the CPU.
Plan explain(const Problem& problem, const Params& params, const activation::Function& function,
             const std::string& architecture);

}  // namespace gdpa::cuda
