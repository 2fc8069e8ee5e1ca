// The headers under kernels/, which are embedded in the library.
#pragma once

#include <string>
#include <vector>

namespace gdpa::jit {

/// A header that a source may include: #include "common/elementary.cuh".
struct Header {
  std::string name;
  std::string text;
};

/// Returns all headers of kernels/, with their paths relative to kernels/.
const std::vector<Header>& embedded_headers();

}  // namespace gdpa::jit
