// The element types of the operands, as a kernel sees them: how wide they are, how many a 16-byte chunk holds, and how
// fp32 becomes one. NVRTC brings no cuda_bf16.h before 13.3, so the conversions are PTX.
#pragma once

#include "gdpa/integers.h"

namespace gdpa {

/// Storage of a 16-bit element; only its bits are ever moved.
struct alignas(2) Half16 {
  unsigned short bits;
};

/// Each element type names its storage and converts pairs. `products` is how many tensor-core products one exact
/// product takes.
struct BFloat16 {
  using Storage = Half16;
  static constexpr int bytes = 2;

  /// Two fp32 rounded to nearest even, the first in the low half. Clamped, negative ones become 0, and NaN stays.
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
};

/// Multiplies pairs of an element type, rounding once, by a factor that is more precise than the type.
template <class Element>
struct SplitFactor;

template <>
struct SplitFactor<BFloat16> {
  // Each twice in a word. Neither is 0 and both have the sign of the factor, so that infinity stays infinity.
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
};

/// fp32 operands, each product in three tf32 products: as precise as fp32.
struct Float32 {
  using Storage = float;
  static constexpr int bytes = 4;
};

/// fp32 operands rounded to tf32, one product: what PyTorch does where it is allowed to.
struct TensorFloat32 {
  using Storage = float;
  static constexpr int bytes = 4;
};

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

/// The columns of each of `warps` warps that share an operand's, padded.
GDPA_HOST_DEVICE constexpr int columns_of_warp(int columns, int warps) {
  return padded_columns((columns + warps - 1) / warps);
}

}  // namespace gdpa
