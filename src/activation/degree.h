// Homogeneous functions: those that a positive factor of the score passes through, as relu, abs and s^2.
#pragma once

#include <optional>

#include "activation/program.h"

namespace gdpa::activation {

/// The p of f(c s) = c^p f(s) for every c > 0, where every step of the program shows that there is one.
std::optional<double> degree_of(const Program& value);

}  // namespace gdpa::activation
