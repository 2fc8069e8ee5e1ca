// The 16-bit floating types and tf32, as bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace gdpa::emulator {

inline float float_of(std::uint32_t bits) {
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}
inline std::uint32_t bits_of(float number) {
  std::uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

struct BFloat16 {
  static float to_float(std::uint16_t bits) { return float_of(static_cast<std::uint32_t>(bits) << 16); }
  static std::uint16_t from(float number) {
    if (std::isnan(number)) return 0x7fff;
    const std::uint32_t bits = bits_of(number);
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};

struct Float16 {
  static float to_float(std::uint16_t bits) {
    const std::uint32_t sign = (bits & 0x8000u) << 16, magnitude = (bits & 0x7fffu) << 13;
    constexpr std::uint32_t infinity = 0x7c00u << 13;
    const float scaled = float_of(magnitude) * 0x1p112f;  // the difference of the exponents' biases
    return float_of((magnitude >= infinity ? magnitude | 0x7f800000u : bits_of(scaled)) | sign);
  }
  static std::uint16_t from(float number) {
    if (std::isnan(number)) return 0x7fff;
    const std::uint32_t bits = bits_of(number), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    const float absolute = float_of(magnitude);
    constexpr float largest = 65520, least_normal = 0x1p-14f, least = 0x1p-24f;
    std::uint32_t half = 0;
    if (absolute >= largest) {
      half = 0x7c00;
    } else if (absolute < least_normal) {
      half = static_cast<std::uint32_t>(std::nearbyint(absolute / least));
    } else {
      half = ((magnitude + 0xfff + (magnitude >> 13 & 1)) >> 13) - (112 << 10);
    }
    return static_cast<std::uint16_t>(half | sign);
  }
};

/// Returns the part of a 32-bit operand that the tensor cores read.
struct TensorFloat32 {
  static float to_float(std::uint32_t bits) { return float_of(bits & 0xffffe000u); }
};

}  // namespace gdpa::emulator
