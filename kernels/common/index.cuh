// The arithmetic of indices: a generated function computes the index of an element of a tensor from positions and from
// other tensors. Integers stay integers, so that indices are exact; other numbers are fp32.
#pragma once

#include "common/elementary.cuh"
#include "definition/params.h"

namespace gdpa::index {

template <class A, class B>
using Common = decltype(A{} + B{});

__device__ __forceinline__ float quotient(float a, float b) { return __fdiv_rn(a, b); }

/// The floor of a / b. A quotient by 0 has an infinite index, which is clamped.
template <class Integer>
__device__ __forceinline__ Integer floor_of_integers(Integer a, Integer b) {
  if (b == 0) return a < 0 ? -0x7fffffff : 0x7fffffff;
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

/// A number as an index. NaN is 0.
__device__ __forceinline__ int64_t whole(int x) { return x; }
__device__ __forceinline__ int64_t whole(long long x) { return x; }
__device__ __forceinline__ int64_t whole(float x) { return __float2ll_rd(x); }

/// The offset of one axis, in elements of the tensor with these sizes and of the tensor with these strides.
template <class Index>
__device__ __forceinline__ int64_t offset(const BoundTensor& sizes, const BoundTensor& strides, int axis, Index index) {
  return sizes.clamped(axis, whole(index)) * strides.strides[axis];
}

/// The same for an axis whose index is a position. It may have the tokens of the packed side.
__device__ __forceinline__ int64_t offset_of_position(const Params& params, const Sequences& side, int64_t b,
                                                      const BoundTensor& sizes, const BoundTensor& strides, int axis,
                                                      unsigned token_bit, int position) {
  int64_t index = position;
  // The first token may be wrong, because it comes from the device.
  if ((params.token_axes & token_bit) != 0) index += sizes.clamped(axis, side.first_token(b));
  return sizes.clamped(axis, index) * strides.strides[axis];
}

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
