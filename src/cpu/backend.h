// The interface of the CPU backend. docs/cpu.md describes its units of work, threads and vectorised loops.
#pragma once

#include "definition/params.h"
#include "definition/problem.h"
#include "expression/function.h"
#include "gdpa/plan.h"
#include "plan/cpu_plan.h"

namespace gdpa::cpu {

/// Computes forward or backward of a call that src/api has checked. `mask` is null unless the mask is an expression.
/// `processor` determines tiles and units of work.
void run(const Problem& problem, const Params& params, const activation::Function& function,
         const activation::Function* mask, const plan::Processor& processor = plan::this_processor());

}  // namespace gdpa::cpu
