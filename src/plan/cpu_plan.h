// The CPU plan: tiles, units of work and workspace as pure functions of the problem, its lengths and the processor.
#pragma once

#include "definition/params.h"
#include "definition/problem.h"
#include "gdpa/plan.h"

namespace gdpa::plan {

/// What a plan asks about the processor.
struct Processor {
  int threads = 1;                ///< processors this process may use
  int64_t cache_bytes = 1 << 20;  ///< second-level cache of one core
};

/// The processor that this process runs on; measured once.
const Processor& this_processor();

/// The plan for a checked problem. Reads nothing of `params` but lengths.
Plan plan_for_cpu(const Problem& problem, const Params& params, const Processor& processor);

}  // namespace gdpa::plan
