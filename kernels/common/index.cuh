// The arithmetic of indices: a generated function computes the index of an element of a tensor from positions and from
// other tensors. Integers stay integers, so that indices are exact; other numbers are fp32.
#pragma once

#include "common/elementary.cuh"
#include "definition/params.h"

namespace gdpa::index {

template <class A, class B>
using Common = decltype(A{} + B{});

/// The floor of a / b. A quotient by 0 has an infinite index, which is clamped, and 0 / 0 is 0, as NaN is.
template <class Integer>
__device__ __forceinline__ Integer floor_of_integers(Integer a, Integer b) {
  if (b == 0) return a == 0 ? 0 : a < 0 ? -0x7fffffff : 0x7fffffff;
  const Integer quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}
__device__ __forceinline__ int floor_divide(int a, int b) { return floor_of_integers(a, b); }
__device__ __forceinline__ long long floor_divide(long long a, long long b) { return floor_of_integers(a, b); }
__device__ __forceinline__ long long floor_divide(int a, long long b) { return floor_of_integers<long long>(a, b); }
__device__ __forceinline__ long long floor_divide(long long a, int b) { return floor_of_integers<long long>(a, b); }
template <class A, class B>
__device__ __forceinline__ float floor_divide(A a, B b) {
  return floorf(__fdiv_rn(static_cast<float>(a), static_cast<float>(b)));
}

__device__ __forceinline__ int floor(int x) { return x; }
__device__ __forceinline__ long long floor(long long x) { return x; }
__device__ __forceinline__ float floor(float x) { return floorf(x); }

/// The floor of the logarithm to the base 2, exact. An x that is not positive has an index below all others.
__device__ __forceinline__ int floor_log2(int x) { return x > 0 ? 31 - __clz(x) : -0x7fffffff; }
__device__ __forceinline__ int floor_log2(long long x) { return x > 0 ? 63 - __clzll(x) : -0x7fffffff; }
__device__ __forceinline__ int floor_log2(float x) {
  const int exponent = (__float_as_int(x) >> 23) - 127;
  return x > 0.0f ? exponent < 128 ? exponent : 0x7fffffff : -0x7fffffff;
}

__device__ __forceinline__ int absolute(int x) { return x < 0 ? -x : x; }
__device__ __forceinline__ long long absolute(long long x) { return x < 0 ? -x : x; }
__device__ __forceinline__ float absolute(float x) { return fabsf(x); }

template <class T>
__device__ __forceinline__ T sign(T x) {
  return x > T{0} ? T{1} : x < T{0} ? T{-1} : x;
}

template <class A, class B>
__device__ __forceinline__ Common<A, B> minimum(A a, B b) {
  const Common<A, B> x = a, y = b;
  return y < x ? y : x;
}
template <class A, class B>
__device__ __forceinline__ Common<A, B> maximum(A a, B b) {
  const Common<A, B> x = a, y = b;
  return x < y ? y : x;
}

/// The nearest index of an axis that exists. NaN becomes 0.
__device__ __forceinline__ int64_t nearest(const BoundTensor& tensor, int axis, long long index) {
  return tensor.clamped(axis, index);
}
__device__ __forceinline__ int64_t nearest(const BoundTensor& tensor, int axis, float index) {
  return tensor.clamped(axis, __float2ll_rd(index));
}
__device__ __forceinline__ unsigned nearest(const BoundTensor& tensor, int axis, int index) {
  const int64_t last = tensor.sizes[axis] - 1;
  const int most = last < 0x7fffffff ? static_cast<int>(last) : 0x7fffffff;  // the same for all scores
  return static_cast<unsigned>(max(0, min(index, most)));
}

/// The offset of one axis, in elements of the tensor with these sizes and of the tensor with these strides.
template <class Index>
__device__ __forceinline__ int64_t offset(const BoundTensor& sizes, const BoundTensor& strides, int axis, Index index) {
  return nearest(sizes, axis, index) * strides.strides[axis];
}

/// An axis whose index is a position. It may have the tokens of the packed side. Made once for many scores, because the
/// loads of cumulative lengths would otherwise repeat at each score.
struct PositionAxis {
  int64_t first;  ///< the element of position 0
  int last;       ///< the last position that exists

  __device__ __forceinline__ static PositionAxis of(const Params& params, const Sequences& side, int64_t b,
                                                    const BoundTensor& tensor, int axis, unsigned token_bit) {
    // The first token may be wrong, because it comes from the device.
    const int64_t first = (params.token_axes & token_bit) != 0 ? tensor.clamped(axis, side.first_token(b)) : 0;
    const int64_t last = tensor.sizes[axis] - 1 - first;
    return {first, last < 0x7fffffff ? static_cast<int>(last) : 0x7fffffff};
  }

  /// The offset in elements of a tensor with these strides.
  __device__ __forceinline__ int64_t offset(const BoundTensor& strides, int axis, int position) const {
    return first * strides.strides[axis] + static_cast<unsigned>(min(position, last)) * strides.strides[axis];
  }
};

}  // namespace gdpa::index

namespace gdpa {

/// The number types of tensors, and the loads of their elements. The tensor is not written during the kernel.
struct ReadFloat32 {
  __device__ __forceinline__ static float at(const BoundTensor& tensor, int64_t offset) {
    return __ldg(static_cast<const float*>(tensor.data) + offset);
  }
};
struct ReadBFloat16 {
  __device__ __forceinline__ static float at(const BoundTensor& tensor, int64_t offset) {
    const unsigned bits = __ldg(static_cast<const unsigned short*>(tensor.data) + offset);
    return __uint_as_float(bits << 16);
  }
};
struct ReadFloat16 {
  __device__ __forceinline__ static float at(const BoundTensor& tensor, int64_t offset) {
    const unsigned short bits = __ldg(static_cast<const unsigned short*>(tensor.data) + offset);
    float number;
    asm("cvt.f32.f16 %0, %1;" : "=f"(number) : "h"(bits));
    return number;
  }
};
struct ReadInt32 {
  __device__ __forceinline__ static int at(const BoundTensor& tensor, int64_t offset) {
    return __ldg(static_cast<const int*>(tensor.data) + offset);
  }
};
struct ReadInt64 {
  __device__ __forceinline__ static long long at(const BoundTensor& tensor, int64_t offset) {
    return __ldg(static_cast<const long long*>(tensor.data) + offset);
  }
};

/// The number of a query head in a tensor that is read without an index.
__device__ __forceinline__ float number_of_head(const BoundTensor& tensor, int head) {
  return static_cast<const float*>(tensor.data)[tensor.offset_of_head(head)];
}

}  // namespace gdpa
