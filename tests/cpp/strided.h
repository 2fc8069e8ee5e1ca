// Strided: tensors of any element type and layout in memory of their own, poisoned before use, so that a test sees
// every element that was written and every one that was not.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "gdpa/tensor.h"

namespace gdpa::test {

/// Scalar conversions, written out bit by bit: exact to double, and to the nearest number, ties to even.
inline double to_double(DType dtype, const std::byte* at) {
  if (dtype == DType::float64) {
    double value;
    std::memcpy(&value, at, 8);
    return value;
  }
  if (dtype == DType::float32) {
    float value;
    std::memcpy(&value, at, 4);
    return static_cast<double>(value);
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, 2);
  if (dtype == DType::bfloat16)
    return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16));
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) return fraction != 0 ? std::nan("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

/// For finite values within the range of the type.
inline void from_double(DType dtype, double value, std::byte* at) {
  if (dtype == DType::float64) {
    std::memcpy(at, &value, 8);
    return;
  }
  const auto single = static_cast<float>(value);
  if (dtype == DType::float32) {
    std::memcpy(at, &single, 4);
    return;
  }
  std::uint16_t bits = 0;
  if (dtype == DType::bfloat16) {
    const auto wide = std::bit_cast<std::uint32_t>(single);
    bits = static_cast<std::uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
  } else if (value != 0) {
    int exponent = 0;
    std::frexp(std::fabs(value), &exponent);
    const int unit = std::max(exponent - 11, -24);
    const double fraction = std::nearbyint(std::ldexp(std::fabs(value), -unit));
    const int biased = unit + 24;  // 0 for denormals; their fraction may round up to the first normal number
    bits = static_cast<std::uint16_t>((biased << 10) + static_cast<int>(fraction));
    if (value < 0) bits = static_cast<std::uint16_t>(bits | 0x8000);
  }
  std::memcpy(at, &bits, 2);
}

/// A view of memory that it owns. Every byte is 0xff before use, which is NaN in all floating types.
class Strided {
 public:
  Strided() = default;

  /// `extent` elements of memory, of which the view uses some.
  Strided(DType dtype, std::vector<int64_t> sizes, std::vector<int64_t> strides, int64_t first, int64_t extent)
      : dtype_(dtype),
        sizes_(std::move(sizes)),
        strides_(std::move(strides)),
        first_(first),
        bytes_(static_cast<std::size_t>(extent * size_in_bytes(dtype)), std::byte{0xff}) {}

  static Strided contiguous(DType dtype, const std::vector<int64_t>& sizes) {
    std::vector<int64_t> strides(sizes.size());
    int64_t extent = 1;
    for (std::size_t i = sizes.size(); i-- > 0;) {
      strides[i] = extent;
      extent *= std::max<int64_t>(sizes[i], 1);
    }
    return {dtype, sizes, strides, 0, extent};
  }

  TensorView view() const { return make<const void*>(bytes_.data() + first_ * size_in_bytes(dtype_)); }
  MutableTensorView mutable_view() { return make<void*>(bytes_.data() + first_ * size_in_bytes(dtype_)); }

  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& sizes() const { return sizes_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::vector<std::byte>& bytes() { return bytes_; }

  /// Calls body(address) for every element of the view, last dimension fastest.
  template <class Body>
  void for_each(const Body& body) {
    visit(0, first_, [&](int64_t offset) { body(bytes_.data() + offset * size_in_bytes(dtype_)); });
  }

  void fill_normal(std::mt19937_64& random, double deviation = 1.0) {
    std::normal_distribution<double> normal(0, deviation);
    for_each([&](std::byte* at) { from_double(dtype_, normal(random), at); });
  }

  std::vector<double> values() {
    std::vector<double> result;
    for_each([&](std::byte* at) { result.push_back(to_double(dtype_, at)); });
    return result;
  }

  /// Whether no byte at all was ever written.
  bool is_poisoned() const {
    return std::all_of(bytes_.begin(), bytes_.end(), [](std::byte byte) { return byte == std::byte{0xff}; });
  }

  /// Whether no byte outside the view was ever written.
  bool rest_is_poisoned() {
    std::vector<bool> inside(bytes_.size(), false);
    for_each([&](std::byte* at) {
      for (int64_t i = 0; i < size_in_bytes(dtype_); ++i) {
        inside[static_cast<std::size_t>(at - bytes_.data() + i)] = true;
      }
    });
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      if (!inside[i] && bytes_[i] != std::byte{0xff}) return false;
    }
    return true;
  }

 private:
  template <class Pointer>
  BasicTensorView<Pointer> make(Pointer data) const {
    BasicTensorView<Pointer> view;
    view.data = data;
    view.dtype = dtype_;
    view.rank = static_cast<int>(sizes_.size());
    std::copy(sizes_.begin(), sizes_.end(), view.sizes.begin());
    std::copy(strides_.begin(), strides_.end(), view.strides.begin());
    return view;
  }

  template <class Body>
  void visit(std::size_t dimension, int64_t offset, const Body& body) const {
    if (dimension == sizes_.size()) {
      body(offset);
      return;
    }
    for (int64_t i = 0; i < sizes_[dimension]; ++i) visit(dimension + 1, offset + i * strides_[dimension], body);
  }

  DType dtype_ = DType::float32;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> strides_;
  int64_t first_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace gdpa::test
