// The headers of the device code, which are embedded in the library as strings.
#pragma once

#include <string>
#include <vector>

namespace gdpa::jit {

/// A header that a source may include: #include "common/elementary.cuh".
struct Header {
  std::string name;
  std::string text;
};

/// Returns every file of kernels/, with its path relative to that folder, and the headers of src/ and include/ that
/// these files include. src/jit/CMakeLists.txt computes the list.
const std::vector<Header>& embedded_headers();

}  // namespace gdpa::jit
