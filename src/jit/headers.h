// The headers under kernels/, as the library carries them.
#pragma once

#include <string>
#include <vector>

namespace gdpa::jit {

/// A header that a source may include: #include "common/elementary.cuh".
struct Header {
  std::string name;
  std::string text;
};

/// All of kernels/, by the paths relative to it.
const std::vector<Header>& embedded_headers();

}  // namespace gdpa::jit
