// The CPU backend's door: plan and run. Everything behind it is threaded, tiled and vectorised; see docs/cpu.md.
#pragma once

#include "activation/function.h"
#include "definition/params.h"
#include "definition/problem.h"
#include "gdpa/plan.h"
#include "plan/cpu_plan.h"

namespace gdpa::cpu {

/// Computes what `problem` asks with the operands of `params`. Both have passed the checks of src/api; the lengths
/// come from params, the tiles and the cuts from what the processor has.
void run(const Problem& problem, const Params& params, const activation::Function& function,
         const plan::Processor& processor = plan::this_processor());

}  // namespace gdpa::cpu
