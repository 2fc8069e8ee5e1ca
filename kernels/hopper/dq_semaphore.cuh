// dQ semaphores: the order in which CTAs add their parts of dQ. A query tile attends to several key tiles, and CTAs of
// different key tiles add to dQ of the query tile, from the last key tile to the first one.
//
//     first writer  the CTA of the last key tile: it stores its part instead of adding it, so that nothing is cleared
//     last writer   the CTA of the first key tile
//
// With few keys, all CTAs add to the gradient, in its type. Otherwise they add to fp32 accumulators. The last writer
// then loads the accumulators, adds its own part, rounds, and stores dQ (GradQuery), so that no kernel rounds them. All
// CTAs wait for the first writer, and the last writer waits for all others. In deterministic mode, each CTA waits for
// the CTA before it.
//
// Each query tile has a semaphore in global memory. If all CTAs add in order, its value is minus the number of the key
// tile that adds next. Numbers are those of the list of the query tile's key tiles, which may skip tiles
// (tile_list.cuh). Until the first writer is done, `not_begun` is added to the value. A CTA that has added its part
// increments the semaphore.
//
// The CTA of a key tile runs one or two query tiles behind the CTA of the next key tile, and waits if it is closer. It
// waits less if it also starts later. Therefore the key tiles of a head are not adjacent in the table
// (head_groups.cuh). Under a causal mask or a window, a key tile has its first queries one or two query tiles before
// the first queries of the next key tile. In descending order, the CTA of the key tile therefore has this distance from
// the start.
//
// No CTA waits forever: CTAs take slots of the table in ascending order, and the key tiles of a head are in the order
// in which they add. The CTA with the lowest slot never waits.
#pragma once

#include "common/memory.cuh"
#include "common/work.cuh"
#include "hopper/arguments.cuh"
#include "pipeline/barrier.cuh"
#include "pipeline/tensor_map.cuh"

namespace gdpa::hopper {

/// The values of a semaphore.
struct DqSemaphore {
  static constexpr int not_begun = -(1 << 30);
  static constexpr int begun = not_begun / 2;  ///< between all values before the first writer and all values after it

  /// The value before the first writer, whose number is `last`.
  static __device__ int initial(int last) { return not_begun - last; }

  /// The value that the semaphore must reach before the key tile with a number may add.
  template <class Config>
  static __device__ int required(GradQuery is, int number) {
    if (begins_grad_query(is)) return 2 * not_begun;  // less than any value
    return Config::ordered || is == GradQuery::last_writer ? -number : begun;
  }
  static __device__ int increment(GradQuery is) { return begins_grad_query(is) ? 1 - not_begun : 1; }
};

/// The semaphore of a head's query tile; `slot` is the slot of the tile among the slots of a head.
__device__ inline int* semaphore_of(const BackwardArguments& arguments, int head, int slot) {
  return arguments.dq_semaphores + int64_t{head} * arguments.semaphores_per_head + slot;
}

/// Whether the semaphore has reached a value. TMA copies that this thread starts afterwards are ordered after the
/// copies of the CTAs that incremented it.
__device__ inline bool has_reached(const BackwardArguments& arguments, const int* semaphore, int required) {
  const bool has = load_acquired(semaphore) >= required || load_acquired(arguments.offsets_fall) != 0;
  fence_proxy_async_global();
  return has;
}

/// A semaphore that was acquired and not yet incremented.
struct SemaphoreRequest {
  int* volatile semaphore;  ///< in global memory; null if the query tile needs none
  volatile GradQuery is;    ///< the destination of dQ
};

/// The requests of a CTA, by the number of their step. The semaphore thread commits a request when the semaphore has
/// the required value, and the store thread releases it when dQ has been added.
using SemaphoreRequests = Queue<SemaphoreRequest, 4>;

/// Sets offsets_fall if cumulative lengths fall, which is an error of the caller. A tile for which another tile waits
/// may then have no slot, so no CTA waits. By all CTAs.
template <class Layout>
__device__ void check_offsets_rise(const BackwardArguments& arguments) {
  const Params& params = arguments.common.params;
  const int64_t threads = int64_t{gridDim.x} * blockDim.x;
  const auto check = [&](const Sequences& side, int64_t entries) {
    if (!Layout::is_jagged(side) || Layout::has_gaps(side)) return;
    for (int64_t b = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; b < entries; b += threads) {
      if (side.begins[b + 1] < side.begins[b]) *arguments.offsets_fall = 1;
    }
  };
  check(params.queries, params.batch);
  const Owner<Layout> keys = owner_of_keys<Layout>(arguments.common, 1, params.batch);
  check(keys.side, keys.entries);
}

}  // namespace gdpa::hopper
