// Random operands as numbers, and in memory, for the emulated tests that compute the definition from these numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "gdpa/tensor.h"
#include "promise.h"

namespace gdpa::test {

/// N(0, 1) numbers, rounded to a type.
inline std::vector<double> drawn_numbers(std::mt19937& random, int64_t count, DType dtype) {
  std::normal_distribution<double> normal;
  std::vector<double> numbers(static_cast<std::size_t>(count));
  for (double& number : numbers) number = rounded(dtype, normal(random));
  return numbers;
}

/// The memory of a contiguous tensor with these elements.
inline std::vector<std::byte> stored(const std::vector<double>& numbers, DType dtype) {
  const auto bytes = static_cast<std::size_t>(size_in_bytes(dtype));
  std::vector<std::byte> memory(numbers.size() * bytes);
  for (std::size_t i = 0; i < numbers.size(); ++i) from_double(dtype, numbers[i], memory.data() + i * bytes);
  return memory;
}

}  // namespace gdpa::test
