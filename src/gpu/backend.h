// The GPU backend: the plan of a call, run, compiled or explained. Kernels are launched on the caller's stream, and
// the host does not wait.
#pragma once

#include <string>
#include <vector>

#include "definition/params.h"
#include "definition/problem.h"
#include "gdpa/attention.h"
#include "gdpa/compile.h"
#include "gdpa/plan.h"
#include "gpu/driver.h"
#include "gpu/kernel.h"
#include "gpu/plan.h"
#include "plan/prepared_tiles.h"

namespace gdpa::gpu {

/// Runs the plan of a call. If `workspace` is null and the kernels need memory, the call allocates memory from the pool
/// of the stream and frees it.
void run(const Problem& problem, const Params& params, const Expressions& expressions, void* stream,
         const Workspace& workspace);

/// Runs the launches of a plan in order. The device of the problem is current. `bytes_function` returns the size of the
/// workspace, for messages.
void run_plan(const GpuPlan& plan, const Problem& problem, const Params& params, const Expressions& expressions,
              Stream stream, const Workspace& workspace, const char* bytes_function = "workspace_bytes");

/// The preparation of a mask expression for calls with the same operands, in one or both directions.
class MaskPreparation {
 public:
  /// There is at least one call. Its problem has a mask expression, and is not prepared.
  MaskPreparation(const std::vector<CheckedCall>& calls, const Expressions& expressions);

  const plan::PreparedTiles& tiles() const { return tiles_; }

  /// Launches the kernels that write the lists to `data`, device memory of tiles().bytes bytes.
  void run(void* data, void* stream) const;

 private:
  /// The lists of a call that no earlier call has.
  struct Round {
    CheckedCall call;
    GpuPlan plan;
  };

  Expressions expressions_of(const CheckedCall& call) const {
    return {call.function ? *call.function : expressions_.function, expressions_.mask};
  }

  Expressions expressions_;
  plan::PreparedTiles tiles_;
  std::vector<Round> rounds_;
};

/// Returns the bytes of device memory that run() needs in addition to inputs and outputs.
int64_t workspace_bytes(const Problem& problem, const Params& params, const Expressions& expressions);

/// A kernel that a call needs, and its CTAs.
struct KernelAhead {
  Kernel kernel;
  int64_t ctas;
};

/// Returns the kernels of the problem, each once. The kernels of the call come first. With Lengths::any, the kernels
/// for other lengths, other numbers of batch entries and other numbers of heads follow, with 0 CTAs.
std::vector<KernelAhead> kernels_ahead(const Problem& problem, const Params& params, const Expressions& expressions,
                                       const Gpu& gpu, Lengths lengths);

/// Compiles these kernels for options.architecture. Without an architecture, compiles them for the device of the
/// problem and loads them there, even during the capture of a CUDA graph.
std::vector<CompiledKernel> compile(const Problem& problem, const Params& params, const Expressions& expressions,
                                    const CompileOptions& options);

/// Returns the plan with the resources of its compiled kernels, for the device of the problem or for an architecture.
/// Reads cumulative lengths from the device of the problem, which may be the CPU for a named architecture.
Plan explain(const Problem& problem, const Params& params, const Expressions& expressions,
             const std::string& architecture);

}  // namespace gdpa::gpu
