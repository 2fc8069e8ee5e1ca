// From tree to Program: the reachable nodes in order, as steps.
#pragma once

#include <vector>

#include "activation/program.h"
#include "activation/tree.h"

namespace gdpa::activation {

/// The most steps of a Program. Beyond it a function costs more than the products around it could ever hide.
constexpr std::size_t most_steps = 4096;

/// The program that computes the roots, in their order. Parameters must be bound. Throws Error (value) where it has
/// more than `most_steps` or holds a constant that is not a number; `text` is shown in the message.
Program lower(const Tree& tree, const std::vector<NodeId>& roots, const std::string& text);

/// The program's results at one score, in fp64.
std::vector<double> evaluate(const Program& program, double score);

/// The same in fp32, as a GPU computes them but for the errors of elementary functions: what overflows there does here.
std::vector<float> evaluate_in_fp32(const Program& program, float score);

}  // namespace gdpa::activation
