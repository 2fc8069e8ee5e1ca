// Zeros for the rows that belong to no sequence: the rows before, between and after the sequences, and the keys that no
// query entry has. Or the rows that are added to the result. No unit of work owns these rows, and a call writes every
// element of its results.
#pragma once

#include "definition/params.h"
#include "definition/problem.h"

namespace gdpa::cpu {

/// Writes the rows of the output, or of the gradients, that no sequence covers. `added`: the operand that is added to
/// the rows of O or dQ; null: none.
void fill_unused_rows(const Problem& problem, const Params& params, const Operand* added);

}  // namespace gdpa::cpu
