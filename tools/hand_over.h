// Handing `gdpa bench` over to the benchmark of the Python package, which times other systems beside gdpa.
#pragma once

#include <string>
#include <vector>

namespace gdpa::tool {

/// Replaces this process by `python3 -m gdpa.bench` with these arguments. Returns, with the reason in one line, only
/// where there is no Python that has gdpa and PyTorch.
std::string hand_over_to_python(const std::vector<std::string>& arguments);

}  // namespace gdpa::tool
