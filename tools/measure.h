// How times are taken: calls repeated for a while, and the median of them.
#pragma once

#include <functional>
#include <vector>

namespace gdpa::tool {

/// Calls `work` for at least `seconds` and at least once; the seconds that each call took.
std::vector<double> time_calls(const std::function<void()>& work, double seconds);

double median(std::vector<double> numbers);

}  // namespace gdpa::tool
