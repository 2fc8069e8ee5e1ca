// Rows that belong to no sequence: those after the last cumulative length. No unit of work owns them, and every element
// of a result is written, so they become zeros here.
#pragma once

#include "definition/params.h"
#include "definition/problem.h"

namespace gdpa::cpu {

/// Writes zeros to the rows of the output, or of the gradients, that no sequence covers.
void clear_unused_rows(const Problem& problem, const Params& params);

}  // namespace gdpa::cpu
