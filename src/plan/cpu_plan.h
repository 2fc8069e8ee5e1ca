// The CPU plan: tiles, units of work and workspace as pure functions of the problem, its lengths and the processor.
#pragma once

#include "definition/params.h"
#include "definition/problem.h"
#include "gdpa/plan.h"

namespace gdpa::plan {

/// What a plan asks about the processor, and what it may spend there. Together with tiles of a few MiB the two budgets
/// keep a thread below 64 MiB at any length.
struct Processor {
  int threads = 1;                   ///< processors this process may use
  int64_t cache_bytes = 1 << 20;     ///< second-level cache of one core
  int64_t held_bytes = 16 << 20;     ///< rows of dQ that a thread sums at once
  int64_t partial_bytes = 32 << 20;  ///< a thread's share of the partial sums of gradients
  double thread_cost = 2.5e6;        ///< work, in multiplications and additions, that is worth waking one more thread
};

/// The processor that this process runs on; measured once.
const Processor& this_processor();

/// The plan for a checked problem. Reads nothing of `params` but lengths.
Plan plan_for_cpu(const Problem& problem, const Params& params, const Processor& processor);

}  // namespace gdpa::plan
