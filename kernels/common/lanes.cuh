// The lanes of a warp, and a prefix sum over them.
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

}  // namespace gdpa
