// What a problem amounts to on any device: its products and its memory traffic. Floors are made from these.
#pragma once

#include "definition/params.h"
#include "definition/problem.h"

namespace gdpa::plan {

/// Multiplications and additions of the products over the scores that the mask keeps: two forward, five backward.
double flops_of(const Problem& problem, const Params& params);

/// The same from shapes alone, for cumulative lengths that the host cannot read: all sequences of a jagged side are
/// taken to have its mean length. Exact where no side is jagged, and where one is, every row has a sequence, and there
/// is no mask.
double flops_of_mean_lengths(const Problem& problem, const Params& params);

/// Bytes where each input is read once and each output written once.
double traffic_of(const Problem& problem, const Params& params);

}  // namespace gdpa::plan
