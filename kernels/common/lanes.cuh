// The lanes of a warp, a prefix sum over them, and a transposition of 8 x 8 elements of 16 bits.
#pragma once

namespace gdpa {

__device__ inline int lane_index() { return static_cast<int>(threadIdx.x % 32); }

/// The inclusive prefix sum over the lanes of a warp.
template <class Number>
__device__ Number sum_up_to_lane(Number value) {
#pragma unroll
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    const Number other = __shfl_up_sync(0xffffffffu, value, distance);
    if (lane_index() >= static_cast<int>(distance)) value += other;
  }
  return value;
}

/// Transposes the elements of a warp. Lane 4 r + c has columns 2 c and 2 c + 1 of row r.
__device__ __forceinline__ unsigned transpose_matrix(unsigned pair) {
  unsigned transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

}  // namespace gdpa
