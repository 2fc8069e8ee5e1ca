// Homogeneous functions, such as relu, abs and s^2: a positive factor of the score can be moved out of the function.
#pragma once

#include <optional>

#include "expression/program.h"

namespace gdpa::activation {

/// Returns p if f(c s) = c^p f(s) for every c > 0 follows from the steps of the program.
std::optional<double> degree_of(const Program& value);

}  // namespace gdpa::activation
