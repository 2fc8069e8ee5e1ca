// Passes `gdpa bench` to the benchmark of the Python package, which compares gdpa with other systems.
#pragma once

#include <string>
#include <vector>

namespace gdpa::tool {

/// Replaces this process by `python3 -m gdpa.bench` with these arguments. Returns only if no Python with gdpa,
/// gdpa-bench and PyTorch exists. The result is then the reason in one line.
std::string hand_over_to_python(const std::vector<std::string>& arguments);

}  // namespace gdpa::tool
