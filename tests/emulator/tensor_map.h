// The contents of the 128 bytes of a tensor map, in a format of the emulator.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gdpa::emulator {

struct TensorMap {
  static constexpr std::uint64_t sealed = 0x67647061206d6170;
  std::uint64_t seal;
  std::uint64_t address;
  std::array<std::uint64_t, 4> extents;
  std::array<std::uint64_t, 3> strides;  ///< bytes, of all dimensions but the first
  std::array<std::uint32_t, 4> box;
  std::uint16_t type;
  std::uint16_t swizzle_bytes;  ///< 0, 32, 64, 128
  std::uint16_t element_bytes;
};
static_assert(sizeof(TensorMap) <= 128);

constexpr int map_type_float16 = 6, map_type_float32 = 7, map_type_bfloat16 = 9;  // of CUtensorMapDataType, cuda.h

}  // namespace gdpa::emulator
