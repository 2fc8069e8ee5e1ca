// Reads NumPy's file format .npy, versions 1.0 to 3.0. Debian has no C++ library for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "gdpa/tensor.h"

namespace gdpa::tool {

/// The array of a file, in C order.
struct NpyArray {
  DType dtype = DType::float32;
  std::vector<int64_t> sizes;
  std::vector<std::byte> data;
};

/// Reads float16, float32, float64, int32 or int64 numbers in little-endian order. Throws UsageError with the name of
/// the file for another file.
NpyArray read_npy(const std::string& path);

/// Reads the file from a stream. `name` is for messages.
NpyArray read_npy(std::istream& stream, const std::string& name);

}  // namespace gdpa::tool
