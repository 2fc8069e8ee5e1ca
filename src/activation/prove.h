// Statements about a Program that hold for every score of a range, proved piece by piece with intervals. A statement
// that cannot be proved within a bounded number of pieces counts as false, so a caller must be safe without it.
#pragma once

#include "activation/program.h"
#include "activation/tree.h"

namespace gdpa::activation {

/// In fp64, for every score from `from` to `to`, both included and possibly infinite: result 0 and result 1 are the
/// same number, and neither is NaN.
bool are_equal(const Program& program, double from, double to);

/// In fp64, for every score from `from` to `to`: result 0 is `number`.
bool is_constant(const Program& program, double from, double to, double number);

/// In fp32, for every finite score beyond an end of `scores`: result 0 has the same bits as at that end. For an
/// infinite score it has these bits or is NaN. An infinite end of `scores` asks nothing.
bool is_level_in_fp32(const Program& program, Range scores);

/// In fp32, for every score, infinite ones included: each of the results that follow the first half equals its partner
/// in the first half, or is not finite.
bool is_same_where_finite(const Program& program);

}  // namespace gdpa::activation
