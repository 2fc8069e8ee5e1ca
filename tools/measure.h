// Time measurement: repeated calls and their median.
#pragma once

#include <functional>
#include <vector>

namespace gdpa::tool {

/// Calls `work` for at least `seconds` and at least once. Returns the seconds of each call.
std::vector<double> time_calls(const std::function<void()>& work, double seconds);

double median(std::vector<double> numbers);

}  // namespace gdpa::tool
