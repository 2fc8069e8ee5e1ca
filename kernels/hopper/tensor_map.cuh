// Copies of tiles by the copy engine (TMA), through tensor maps: what a map says of an operand, and the instructions.
// The host includes this file too, and fills the maps in.
//
// A map has four coordinates: column, head, x and y. The row of a tile lies at x * row stride + y * y stride, and x is
// what the hardware bounds: it reads zeros, and writes nothing, from x = extent on.
//
//     dense, shared   x = row                          extent = length    y = batch entry, or 0 where it is shared
//     jagged          x = extent - length + row        extent = packed rows
//                     y = rows up to the end of the sequence, of the same stride as x
//
// So one map bounds every sequence of a packed operand at its own end: a tile that runs past it gets zeros, whatever
// the neighbour holds, and no length is known to the host. The address in a jagged map is that of the operand less
// extent * row stride, to make up for the first term.
//
// A box that is loaded must begin before the end: one wholly past the extent is an illegal address to the copy engine.
#pragma once

#include "gdpa/integers.h"

#ifdef __CUDACC_RTC__
#include "common/random_delay.cuh"
#endif

namespace gdpa::hopper {

/// The driver's CUtensorMap.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

/// Columns of one row of a box: 128 bytes, the width of the swizzle.
constexpr int box_columns = 64;

/// Where a sequence begins in a map.
struct MapOrigin {
  int x;
  int y;
};

#ifdef __CUDACC_RTC__

__device__ inline void prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// Starts the copy of a box to shared memory; its bytes arrive at `barrier`.
__device__ inline void load_box(unsigned destination, const TensorMap& map, unsigned barrier, int column, int head,
                                const MapOrigin& at) {
  random_delay();
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(destination),
      "l"(&map), "r"(barrier), "r"(column), "r"(head), "r"(at.x), "r"(at.y)
      : "memory");
}

/// Starts the copy of a box from shared memory.
__device__ inline void store_box(const TensorMap& map, unsigned source, int column, int head, const MapOrigin& at) {
  random_delay();
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(source), "r"(column), "r"(head), "r"(at.x), "r"(at.y)
               : "memory");
}

/// The same, added to what is there; in the type of the map, rounded at each addition.
__device__ inline void add_box(const TensorMap& map, unsigned source, int column, int head, const MapOrigin& at) {
  random_delay();
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
      "r"(source), "r"(column), "r"(head), "r"(at.x), "r"(at.y)
      : "memory");
}

/// Starts the copy of `bytes`, a multiple of 16, from global to shared memory; they arrive at `barrier`.
__device__ inline void load_bytes(unsigned destination, const void* source, unsigned bytes, unsigned barrier) {
  random_delay();
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   destination),
               "l"(source), "r"(bytes), "r"(barrier)
               : "memory");
}

/// Starts the copy of `bytes`, a multiple of 16, from shared to global memory.
__device__ inline void store_bytes(void* destination, unsigned source, unsigned bytes) {
  random_delay();
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(destination), "r"(source), "r"(bytes)
               : "memory");
}

/// Starts the addition of fp32 numbers in shared memory to those in global memory.
__device__ inline void add_to_global(float* destination, unsigned source, unsigned bytes) {
  random_delay();
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(destination),
               "r"(source), "r"(bytes)
               : "memory");
}

__device__ inline void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Waits until this thread's stores have read their shared memory, or have ended.
__device__ inline void wait_for_stores_to_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  random_delay();
}

/// All but the last `under_way` groups of them have arrived.
template <int under_way = 0>
__device__ inline void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(under_way) : "memory");
  random_delay();
}

/// Orders what this thread has loaded from global memory before the copies that it starts.
__device__ inline void order_copies_behind_loads() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/// Orders what this thread wrote to shared memory, or read there, before copies and products that read or replace it; a
/// barrier before these must follow.
__device__ inline void publish_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#endif

}  // namespace gdpa::hopper
