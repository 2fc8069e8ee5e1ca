// Zeros for the rows that belong to no sequence: the rows before, between and after the sequences, and the keys that no
// query entry has. Or Q and dO, if Q is added to O. No unit of work owns these rows, and a call writes every element of
// its results.
#pragma once

#include "definition/params.h"
#include "definition/problem.h"

namespace gdpa::cpu {

/// Writes the rows of the output, or of the gradients, that no sequence covers.
void fill_unused_rows(const Problem& problem, const Params& params);

}  // namespace gdpa::cpu
