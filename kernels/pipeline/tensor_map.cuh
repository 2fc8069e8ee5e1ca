// TMA copies of tiles: the coordinates of the tensor maps, and the instructions. The host includes this file too, and
// fills in the maps.
//
// A map has four coordinates: column, head, x and y. The address of a row is x * row stride + y * y stride. The
// hardware bounds x: from x = extent on, it reads zeros and writes nothing.
//
//     dense, shared   x = row                          extent = length    y = batch entry, or 0 for a shared operand
//     jagged          x = extent - length + row        extent = packed rows
//                     y = rows up to the end of the sequence, with the stride of x
//
//     output_offsets  x as the map of Q, for O and dO  extent = as Q
//                     y = first row, plus length if Q is jagged, with the stride of x
//
//     pages           x = extent - keys of the page + row in the page      extent = rows of a page
//                     y = first row of the page + keys of the page, with the stride of x
//
// One map therefore bounds every sequence of a packed operand at its own end: a tile that extends past the end reads
// zeros instead of the next sequence, and the host knows no length. The base address of a jagged map is the address of
// the operand minus extent * row stride, which cancels the first term of x. The map of pages bounds each page in the
// same way: the rows after the last key of a sequence read as zeros.
//
// A box that is loaded must begin before the extent. A box wholly beyond it is an illegal address for TMA.
#pragma once

#include "gdpa/integers.h"

#ifdef __CUDACC_RTC__
#include "common/random_delay.cuh"
#endif

namespace gdpa::pipeline {

/// The driver's CUtensorMap.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

/// Columns of one row of a box: 128 bytes, the width of the swizzle.
constexpr int box_columns = 64;

/// The coordinates x and y of a row in a map.
struct MapOrigin {
  int x;
  int y;
};

#ifdef __CUDACC_RTC__

/// Starts a TMA load of a box to shared memory. Its bytes arrive at `barrier`.
__device__ inline void tma_load(unsigned destination, const TensorMap& map, unsigned barrier, int column, int head,
                                const MapOrigin& at) {
  random_delay();
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(column), "r"(head), "r"(at.x), "r"(at.y)
      : "memory");
}

/// Starts a TMA store of a box from shared memory.
__device__ inline void tma_store(const TensorMap& map, unsigned source, int column, int head, const MapOrigin& at) {
  random_delay();
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(source), "r"(column), "r"(head), "r"(at.x), "r"(at.y)
               : "memory");
}

/// Starts a TMA reduction: adds the box to global memory in the type of the map, with a rounding for each addition.
__device__ inline void tma_reduce_add(const TensorMap& map, unsigned source, int column, int head,
                                      const MapOrigin& at) {
  random_delay();
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
      "r"(source), "r"(column), "r"(head), "r"(at.x), "r"(at.y)
      : "memory");
}

/// Starts a bulk copy of `bytes`, a multiple of 16, from global to shared memory. They arrive at `barrier`.
__device__ inline void bulk_load(unsigned destination, const void* source, unsigned bytes, unsigned barrier) {
  random_delay();
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

/// Starts a bulk copy of `bytes`, a multiple of 16, from shared to global memory.
__device__ inline void bulk_store(void* destination, unsigned source, unsigned bytes) {
  random_delay();
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination), "r"(source), "r"(bytes)
               : "memory");
}

/// Starts a bulk reduction: adds fp32 numbers in shared memory to global memory.
__device__ inline void bulk_reduce_add(float* destination, unsigned source, unsigned bytes) {
  random_delay();
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(destination),
               "r"(source), "r"(bytes)
               : "memory");
}

__device__ inline void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until the stores of this thread have read shared memory.
__device__ inline void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  random_delay();
}

/// Waits until all stores of this thread but the last `pending` groups are complete.
template <int pending = 0>
__device__ inline void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
  random_delay();
}

/// Orders loads of this thread from global memory before the TMA copies that it starts.
__device__ inline void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/// Orders accesses of this thread to shared memory before TMA copies and WGMMA that read or overwrite it. A barrier
/// must follow before these.
__device__ inline void fence_proxy_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif

}  // namespace gdpa::pipeline
