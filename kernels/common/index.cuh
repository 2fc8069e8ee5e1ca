// The arithmetic of indices: a generated function computes the index of an element of a tensor from positions and from
// other tensors. Integers stay integers, so that indices are exact; other numbers are fp32.
#pragma once

#include "common/elementary.cuh"
#include "common/sequence.cuh"
#include "common/types.cuh"
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

/// The same for an x that is at least `low`, a positive normal number. NaN counts as `low`. Infinity has the exponent
/// 128. A 32-bit integer is rounded towards zero to fp32, and then has the same exponent. A count of leading zeros
/// would run in the unit that computes tanh. The conversion does not.
__device__ __forceinline__ int floor_log2_from(int x, float) {
  return (__float_as_int(__int2float_rz(x)) >> 23) - 127;
}
__device__ __forceinline__ int floor_log2_from(long long x, float) { return 63 - __clzll(x); }
__device__ __forceinline__ int floor_log2_from(float x, float low) {
  return (__float_as_int(fmaxf(x, low)) >> 23) - 127;
}

__device__ __forceinline__ int absolute(int x) { return x < 0 ? -x : x; }
__device__ __forceinline__ long long absolute(long long x) { return x < 0 ? -x : x; }
__device__ __forceinline__ float absolute(float x) { return fabsf(x); }

/// The absolute value of a - b. 32-bit integers need one instruction.
__device__ __forceinline__ int absolute_difference(int a, int b) {
  int result;
  asm("sad.s32 %0, %1, %2, 0;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
template <class A, class B>
__device__ __forceinline__ Common<A, B> absolute_difference(A a, B b) {
  return absolute(a - b);
}

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

/// The nearest index from 0 to `last`. NaN is 0.
__device__ __forceinline__ int nearest(int x, int last) { return max(0, min(x, last)); }
__device__ __forceinline__ int nearest(long long x, int last) {
  return x < 0 ? 0 : x > last ? last : static_cast<int>(x);
}
__device__ __forceinline__ int nearest(float x, int last) { return nearest(__float2int_rd(x), last); }

/// The same for an index that is not negative.
__device__ __forceinline__ int nearest_from_0(int x, int last) { return min(x, last); }
__device__ __forceinline__ int nearest_from_0(long long x, int last) { return x > last ? last : static_cast<int>(x); }
__device__ __forceinline__ int nearest_from_0(float x, int last) { return nearest(x, last); }

/// Converts an index that fits into 32 bits. NaN becomes 0.
__device__ __forceinline__ int to_int(int x) { return x; }
__device__ __forceinline__ int to_int(long long x) { return static_cast<int>(x); }
__device__ __forceinline__ int to_int(float x) { return __float2int_rd(x); }

/// Debug mode: whether an index, counted from `first`, does not exist in an axis. An axis of size 1 is broadcast. NaN
/// does not exist.
template <class Index>
__device__ bool is_outside(Index index, int64_t first, int64_t size) {
  const double number = static_cast<double>(index) + static_cast<double>(first);
  return size != 1 && !(number >= 0 && number < static_cast<double>(size));
}

/// Prints such an index, in the words of the CPU backend.
template <class Index>
__device__ void print(Index index, int64_t first, int64_t size, int axis, const char* name, const SequencePair& pair,
                      int query, int key) {
  const double number = static_cast<double>(index) + static_cast<double>(first);
  printf("gdpa: index %d of %s is %lld at batch = %lld, head = %d, q_idx = %d, kv_idx = %d, expected 0 to %lld\n",
         axis, name, static_cast<long long>(number), static_cast<long long>(pair.b), pair.head, query, key,
         static_cast<long long>(size - 1));
}

/// The element at an offset in bytes. An offset of 32 bits fits if the tensor has less than 2^31 bytes, and is never
/// negative.
template <class T>
__device__ __forceinline__ const T* element(const T* tensor, int64_t bytes) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(tensor) + bytes);
}
template <class T>
__device__ __forceinline__ const T* element(const T* tensor, int bytes) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(tensor) + static_cast<unsigned>(bytes));
}

/// An axis of a tensor whose index depends on the position in the sequence.
struct Axis {
  int64_t first;  ///< the offset of index 0, in elements
  int last;       ///< the last index
};

__device__ __forceinline__ Axis axis_of(const BoundTensor& tensor, int axis) {
  return {0, static_cast<int>(tensor.sizes[axis] - 1)};
}

/// The same for an axis that has the rows of the packed operand. Index 0 is the first row of the sequence, which may be
/// wrong, because it comes from the device. `Offset` is the type of offsets in the tensor.
template <class Offset>
__device__ __forceinline__ Axis row_axis_of(const BoundTensor& tensor, int64_t first_row, int length, int axis) {
  const auto last_row = static_cast<Offset>(tensor.sizes[axis] - 1), row = static_cast<Offset>(first_row);
  const Offset first = maximum(Offset{0}, minimum(row, last_row));
  return {first, maximum(0, static_cast<int>(minimum<Offset>(length - 1, last_row - first)))};
}

/// The offset of an index that is the same for all scores of a head and batch entry.
template <class Index>
__device__ __forceinline__ int64_t fixed_offset(const BoundTensor& sizes, const BoundTensor& strides, int axis,
                                                Index index) {
  return nearest(index, static_cast<int>(sizes.sizes[axis] - 1)) * strides.strides[axis];
}

}  // namespace gdpa::index

namespace gdpa {

/// The number types of tensors, and the loads of their elements. The tensor is not written during the kernel. of_pair():
/// an element of a pair in a register, counted from the lower address.
struct ReadFloat32 {
  using Storage = float;
  __device__ __forceinline__ static float at(const Storage* element) { return __ldg(element); }
};
template <class Element>
struct ReadHalf16 {
  using Storage = unsigned short;
  __device__ __forceinline__ static float at(const Storage* element) { return Element::number({__ldg(element)}); }
  __device__ __forceinline__ static float of_pair(unsigned pair, int i) {
    return Element::number({static_cast<Storage>(i == 0 ? pair : pair >> 16)});
  }
};
using ReadBFloat16 = ReadHalf16<BFloat16>;
using ReadFloat16 = ReadHalf16<Float16>;
struct ReadInt32 {
  using Storage = int;
  __device__ __forceinline__ static int at(const Storage* element) { return __ldg(element); }
};
struct ReadInt64 {
  using Storage = long long;
  __device__ __forceinline__ static long long at(const Storage* element) { return __ldg(element); }
};

/// The number of a query head in a tensor that is read without an index.
__device__ __forceinline__ float number_of_head(const BoundTensor& tensor, int head) {
  return static_cast<const float*>(tensor.data)[tensor.offset_of_head(head)];
}

}  // namespace gdpa
