// Converts a tree to a Program. The steps are the reachable nodes in order.
#pragma once

#include <vector>

#include "expression/program.h"
#include "expression/tree.h"

namespace gdpa::activation {

/// The largest number of steps of a Program. The products cannot hide the time of a longer function.
constexpr std::size_t most_steps = 4096;

/// Returns the program that computes the roots in their order. Parameters must be bound (Tree::bind). Throws Error
/// (value) if the program has more than `most_steps` steps, or a constant that is NaN. The message contains `text`, and
/// does not name the expression.
Program lower(const Tree& tree, const std::vector<NodeId>& roots, const std::string& text);

/// Returns the program's results at one score in fp64, with these numbers of the inputs.
std::vector<double> evaluate(const Program& program, double score, const std::vector<double>& inputs = {});

/// Returns the results in fp32, as on a GPU except for the errors of elementary functions. The same values overflow.
std::vector<float> evaluate_in_fp32(const Program& program, float score);

}  // namespace gdpa::activation
