// dQ semaphores: the order in which CTAs add to dQ. The key tiles of a sequence add in falling order. The last key tile
// that a query tile attends to is the first writer: it stores instead of adding. With few keys, all of them add to the
// gradient, in its type. Otherwise they add to fp32 accumulators, and the first key tile is the last writer: it adds
// its own part to the accumulators, rounds, and stores dQ (GradQuery). No kernel has to clear the accumulators before
// or round them afterwards. Other key tiles wait until the first writer is done, and the last writer waits for all of
// them. In deterministic mode each key tile waits for all key tiles before it.
//
// Each query tile has a semaphore in global memory. Its value is minus the number, in the list of the query tile's key
// tiles (tile_list.cuh), of the key tile that is next if all add in order, and `not_begun` is added until the first
// writer is done. A CTA that has added increments the semaphore. Numbers count the key tiles of the list, which may
// skip tiles.
//
// A CTA follows the CTA of the next key tile at a distance of one or two query tiles, and waits until it has this
// distance. The wait is shorter if the CTA also begins that much later. Therefore the tiles of a head are not adjacent
// in the table (head_groups.cuh). A mask that excludes later keys, or a window, makes a key tile reach the queries that
// it has in common with the next key tile one or two steps after it. Hence the falling order.
//
// No CTA waits forever: CTAs take slots of the table in rising order, and the tiles of a head are in the order in which
// they add. The CTA with the lowest slot never waits.
#pragma once

#include "common/memory.cuh"
#include "common/work.cuh"
#include "hopper/arguments.cuh"
#include "hopper/barrier.cuh"
#include "hopper/tensor_map.cuh"

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

/// The requests of a CTA, in shared memory, by the number of their step.
struct SemaphoreRequests {
  static constexpr int most = 4;
  static constexpr int barriers_at = most * static_cast<int>(sizeof(SemaphoreRequest));
  static constexpr int bytes = barriers_at + 2 * Barriers<most>::bytes;

  SemaphoreRequest* requests;
  Barriers<most> acquired;  ///< the semaphore thread arrives: the semaphore has the required value
  Barriers<most> added;     ///< the store thread arrives: dQ has been added

  __device__ static SemaphoreRequests at(unsigned char* memory) {
    const unsigned barriers = shared_address(memory) + barriers_at;
    return {reinterpret_cast<SemaphoreRequest*>(memory), {barriers}, {barriers + Barriers<most>::bytes}};
  }

  __device__ SemaphoreRequest& operator[](int number) const { return requests[stage_of<most>(number)]; }
  __device__ void initialise() const {
    acquired.initialise(1);
    added.initialise(1);
  }
  __device__ __forceinline__ void mark_added(int number) const { added[stage_of<most>(number)].arrive(); }
};

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
