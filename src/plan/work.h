// The amount of work of a problem on any device: its products and its memory traffic, which determine the floor.
#pragma once

#include "definition/params.h"
#include "definition/problem.h"

namespace gdpa::plan {

/// Returns the multiplications and additions of the products over the scores that the mask keeps: two in forward, five
/// in backward.
double flops_of(const Problem& problem, const Params& params);

/// Returns this number if the mask keeps this number of scores, in all query heads together.
double flops_of_scores(const Problem& problem, double scores);

/// Returns this number from shapes alone, for cumulative lengths that the host cannot read. All sequences of a jagged
/// side are assumed to have the mean length. The number is exact if no side is jagged. It is also exact if one side is
/// jagged, every row belongs to a sequence, and the mask keeps all scores.
double flops_of_mean_lengths(const Problem& problem, const Params& params);

/// Returns the bytes of all inputs, read once, and of all outputs, written once.
double traffic_of(const Problem& problem, const Params& params);

}  // namespace gdpa::plan
