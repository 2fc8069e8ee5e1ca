// The tensor-core product of one warp, C (16 x 8) += A (16 x k) B (k x 8) with fp32 sums, for each element type: k is
// 16 for 16-bit elements and 8 for 32-bit ones, so the registers are the same in number for all.
#pragma once

#include "common/types.cuh"

namespace gdpa {

/// Lane l holds, with g = l / 4 and t = l % 4: of A rows g and g + 8, of B column g, of C rows g and g + 8 at columns
/// 2 t and 2 t + 1.
struct FragmentA {
  unsigned part[4];
};
struct FragmentB {
  unsigned part[2];
};
struct FragmentC {
  float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};  ///< (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1)
};

template <class Element>
struct TensorCore;

template <>
struct TensorCore<BFloat16> {
  static __device__ void multiply_add(FragmentC& c, const FragmentA& a, const FragmentB& b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c.part[0]), "+f"(c.part[1]), "+f"(c.part[2]), "+f"(c.part[3])
        : "r"(a.part[0]), "r"(a.part[1]), "r"(a.part[2]), "r"(a.part[3]), "r"(b.part[0]), "r"(b.part[1]));
  }
};

template <>
struct TensorCore<Float16> {
  static __device__ void multiply_add(FragmentC& c, const FragmentA& a, const FragmentB& b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c.part[0]), "+f"(c.part[1]), "+f"(c.part[2]), "+f"(c.part[3])
        : "r"(a.part[0]), "r"(a.part[1]), "r"(a.part[2]), "r"(a.part[3]), "r"(b.part[0]), "r"(b.part[1]));
  }
};

__device__ inline unsigned round_to_tf32(float value) {
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
  return rounded;
}

template <>
struct TensorCore<TensorFloat32> {
  static __device__ void multiply_add_rounded(FragmentC& c, const FragmentA& a, const FragmentB& b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c.part[0]), "+f"(c.part[1]), "+f"(c.part[2]), "+f"(c.part[3])
        : "r"(a.part[0]), "r"(a.part[1]), "r"(a.part[2]), "r"(a.part[3]), "r"(b.part[0]), "r"(b.part[1]));
  }

  static __device__ void multiply_add(FragmentC& c, const FragmentA& a, const FragmentB& b) {
    FragmentA rounded_a;
    FragmentB rounded_b;
    for (int i = 0; i < 4; ++i) rounded_a.part[i] = round_to_tf32(__uint_as_float(a.part[i]));
    for (int i = 0; i < 2; ++i) rounded_b.part[i] = round_to_tf32(__uint_as_float(b.part[i]));
    multiply_add_rounded(c, rounded_a, rounded_b);
  }
};

/// a b = (A + a') (B + b'), where A and B are rounded to tf32 and a' and b' are the remainders. a' b' is below the last
/// bit of fp32 and is left out.
template <>
struct TensorCore<Float32> {
  static __device__ void split(unsigned& value, unsigned& rest) {
    const float whole = __uint_as_float(value);
    value = round_to_tf32(whole);
    rest = round_to_tf32(whole - __uint_as_float(value));
  }

  static __device__ void multiply_add(FragmentC& c, FragmentA a, FragmentB b) {
    FragmentA rest_a;
    FragmentB rest_b;
    for (int i = 0; i < 4; ++i) split(a.part[i], rest_a.part[i]);
    for (int i = 0; i < 2; ++i) split(b.part[i], rest_b.part[i]);
    // The tensor core truncates its sums instead of rounding them, and a long sum would accumulate this error. It
    // therefore sums eight terms only, and fp32 additions, which round, add these sums.
    FragmentC sum;
    using Product = TensorCore<TensorFloat32>;
    Product::multiply_add_rounded(sum, rest_a, b);
    Product::multiply_add_rounded(sum, a, rest_b);
    Product::multiply_add_rounded(sum, a, b);
    for (int i = 0; i < 4; ++i) c.part[i] += sum.part[i];
  }
};

}  // namespace gdpa
