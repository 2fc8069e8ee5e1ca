// The CUDA backend's door: what a call needs, and the call. Kernels are launched on the caller's stream; the host waits
// for nothing.
#pragma once

#include <string>

#include "activation/function.h"
#include "definition/params.h"
#include "definition/problem.h"
#include "gdpa/attention.h"
#include "gdpa/plan.h"

namespace gdpa::cuda {

/// Launches what `problem` asks. Where `workspace` is null and memory is needed, it is taken from the stream's pool
/// and given back to it.
void run(const Problem& problem, const Params& params, const activation::Function& function, void* stream,
         const Workspace& workspace);

/// Device memory that run needs beyond inputs and outputs.
int64_t workspace_bytes(const Problem& problem, const Params& params);

/// The plan in words; loads the kernels, so that registers and shared memory are those of the device.
Plan explain(const Problem& problem, const Params& params, const activation::Function& function);

}  // namespace gdpa::cuda
