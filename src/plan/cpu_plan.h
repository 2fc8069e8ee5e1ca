// The CPU plan: tiles, units of work and workspace as pure functions of the problem, its lengths and the processor.
#pragma once

#include "definition/params.h"
#include "definition/problem.h"
#include "gdpa/plan.h"

namespace gdpa::plan {

/// The properties of the processor for a plan, and the budgets of a plan. With tiles of a few MiB, the two budgets keep
/// the memory of a thread below 64 MiB for all lengths.
struct Processor {
  int threads = 1;                   ///< number of processors that this process may use
  int64_t cache_bytes = 1 << 20;     ///< second-level cache of one core
  int64_t held_bytes = 16 << 20;     ///< for the rows of dQ that a thread accumulates at once
  int64_t partial_bytes = 32 << 20;  ///< for the partial sums of a thread
  double thread_cost = 2.5e6;        ///< multiplications and additions that justify waking one more thread
};

/// Returns the processor of this process, which is inspected once.
const Processor& this_processor();

/// Returns the plan of a checked problem. Reads only lengths from `params`.
Plan plan_for_cpu(const Problem& problem, const Params& params, const Processor& processor);

}  // namespace gdpa::plan
