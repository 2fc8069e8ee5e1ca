// Proofs that a statement about a Program holds for every score of a range. The range is divided into pieces, and
// interval arithmetic proves the statement on each piece. If a bounded number of pieces does not suffice, the function
// returns false, so a false result does not mean that the statement is wrong.
#pragma once

#include "expression/program.h"
#include "expression/tree.h"

namespace gdpa::activation {

/// In fp64, for every score from `from` to `to`, both included and possibly infinite: result 0 and result 1 are the
/// same number, and neither is NaN.
bool are_equal(const Program& program, double from, double to);

/// In fp64, for every score from `from` to `to`: result 0 is `number`.
bool is_constant(const Program& program, double from, double to, double number);

/// In fp32, for every finite score beyond an end of `scores`: result 0 has the same bits as at that end. For an
/// infinite score it has these bits or is NaN. Nothing is required beyond an infinite end.
bool is_level_in_fp32(const Program& program, Range scores);

/// In fp32, for every score, including infinity: each result of the second half equals the corresponding result of the
/// first half, or is not finite.
bool is_same_where_finite(const Program& program);

}  // namespace gdpa::activation
