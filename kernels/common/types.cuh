// The element types of the operands: their width, the number of elements in a 16-byte chunk, and the conversion from
// fp32. The conversions are PTX, because NVRTC has no cuda_bf16.h before version 13.3.
#pragma once

#include "gdpa/integers.h"

namespace gdpa {

/// Storage of a 16-bit element. Kernels copy its bits and never compute with it.
struct alignas(2) Half16 {
  unsigned short bits;
};

/// Each element type has a storage type and its size in bytes; 16-bit types also convert pairs of fp32 numbers.
struct BFloat16 {
  using Storage = Half16;
  static constexpr int bytes = 2;

  /// Two fp32 numbers rounded to nearest even, the first in the low half. With clamps_at_zero, negative numbers become
  /// 0 and NaN stays NaN.
  template <bool clamps_at_zero = false>
  static __device__ unsigned pack(float low, float high) {
    unsigned packed;
    if constexpr (clamps_at_zero) {
      asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    } else {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    }
    return packed;
  }

  /// An element in fp32, and a number as an element.
  static __device__ float number(Storage element) { return __uint_as_float(unsigned{element.bits} << 16); }
  static __device__ Storage rounded(float number) { return {static_cast<unsigned short>(pack(number, 0.0f))}; }
};

/// Multiplies pairs of an element type by an fp32 factor, and rounds once.
template <class Element>
struct SplitFactor;

template <>
struct SplitFactor<BFloat16> {
  // Each number is in both halves of its word. Neither is 0 and both have the sign of the factor, so that infinity
  // stays infinity.
  unsigned high, low;

  __device__ explicit SplitFactor(float factor) {
    const unsigned cut = __float_as_uint(factor * 0.99f) & 0xffff0000u;
    const float rest = factor - __uint_as_float(cut);
    high = cut | cut >> 16;
    low = BFloat16::pack(rest, rest);
  }

  __device__ unsigned times(unsigned pair) const {
    unsigned rest, product;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(rest) : "r"(pair), "r"(low));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(pair), "r"(high), "r"(rest));
    return product;
  }
};

struct Float16 {
  using Storage = Half16;
  static constexpr int bytes = 2;

  template <bool clamps_at_zero = false>
  static __device__ unsigned pack(float low, float high) {
    unsigned packed;
    if constexpr (clamps_at_zero) {
      asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    } else {
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    }
    return packed;
  }

  static __device__ float number(Storage element) {
    float number;
    asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(element.bits));
    return number;
  }
  static __device__ Storage rounded(float number) { return {static_cast<unsigned short>(pack(number, 0.0f))}; }
};

/// fp32 operands. One product is three tf32 products, which together are as precise as fp32.
struct Float32 {
  using Storage = float;
  static constexpr int bytes = 4;
  static __device__ float number(Storage element) { return element; }
  static __device__ Storage rounded(float number) { return number; }
};

/// fp32 operands rounded to tf32, with one product, as in PyTorch with allow_tf32.
struct TensorFloat32 : Float32 {};

/// The two 16-bit elements of a word, in fp32.
template <class Element>
__device__ float2 unpack(unsigned pair) {
  return {Element::number({static_cast<unsigned short>(pair)}),
          Element::number({static_cast<unsigned short>(pair >> 16)})};
}

/// Elements in 16 bytes, the unit of every copy; and the depth of one tensor-core product, always 32 bytes.
template <class Element>
constexpr int chunk_elements = 16 / Element::bytes;
template <class Element>
constexpr int product_depth = 32 / Element::bytes;

/// Tiles pad both head dims to this many columns, with zeros.
constexpr int column_group = 16;
GDPA_HOST_DEVICE constexpr int padded_columns(int columns) {
  return (columns + column_group - 1) / column_group * column_group;
}

/// The columns of one of `warps` warps that split the columns of an operand, padded.
GDPA_HOST_DEVICE constexpr int columns_of_warp(int columns, int warps) {
  return padded_columns((columns + warps - 1) / warps);
}

}  // namespace gdpa
