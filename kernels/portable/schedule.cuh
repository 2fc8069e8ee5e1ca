// Which tile of which head and batch entry a CTA computes. The host never knows the lengths of a jagged batch: it
// launches as many CTAs as there can be tiles at most, `prepare` counts the tiles on the device, and each CTA finds its
// tile by searching the counts. The hardware deals CTAs out as others end, which balances sequences of any lengths.
//
// prepare: grid 2 + any number of CTAs (more zero the unused rows faster; 64 are plenty), block prepare_threads, no
//          dynamic shared memory. Memory: (batch + 1) int64 numbers for each jagged side that tiles are counted for.
//          Launched before the kernels that read the counts, and needed only where a side is jagged.
#pragma once

#include "common/sequence.cuh"

namespace gdpa::portable {

/// The tiles of the side that owns the work, queries in forward and keys in backward.
struct TileCounts {
  const int64_t* before = nullptr;  ///< batch + 1: tiles of all earlier entries, or null: all have `each`
  int64_t each = 0;
  int64_t owners = 0;  ///< batch entries; for an operand that the batch shares: parts that the batch is cut into
};

/// One piece of work: a tile of one head, summed over batch entries [batch_begin, batch_end), which is one entry
/// unless the owner is shared by the batch.
struct Work {
  int64_t batch_begin;
  int64_t batch_end;
  int64_t owner;  ///< batch_begin, or which part of the batch
  int64_t item;   ///< this work's place among all
  int head;       ///< of the owner's side
  int key_head;
  int tile;
  Rows queries;  ///< of entry batch_begin
  Rows keys;
};

/// What every kernel receives.
struct Arguments {
  Params params;
  int64_t packed_rows_q;  ///< rows of the query operand, which jagged offsets are clamped to
  int64_t packed_rows_k;
  TileCounts tiles;

  __device__ Rows queries(int64_t b) const { return rows_of(params.queries, b, packed_rows_q); }
  __device__ Rows keys(int64_t b) const { return rows_of(params.keys, b, packed_rows_k); }
  __device__ float out_scale(int64_t b, const Rows& queries, const Rows& keys) const {
    return static_cast<float>(params.out_scale.of(b, queries.count, keys.count));
  }
};

/// The last entry with before[entry] * heads <= item, by one warp: 32 places are looked at in one round.
__device__ inline int64_t find_owner(const TileCounts& counts, int64_t heads, int64_t item) {
  int64_t low = 0;
  int64_t size = counts.owners;
  while (size > 1) {
    const int64_t step = (size + 31) / 32;
    const int64_t place = static_cast<int64_t>(threadIdx.x % 32) * step;
    const bool at_or_before = place < size && counts.before[low + place] * heads <= item;
    const int64_t passed = __popc(__ballot_sync(0xffffffffu, at_or_before)) - 1;
    low += passed * step;
    size = size - passed * step < step ? size - passed * step : step;
  }
  return low;
}

/// The work of `item`, tiles innermost so that CTAs that run together read the same keys, or queries; tile is -1 past
/// the last one. The batch is cut evenly into the owners' parts.
__device__ inline Work find_work(const Arguments& arguments, int64_t heads, int64_t item) {
  const TileCounts& counts = arguments.tiles;
  Work work{0, 0, 0, item, 0, 0, -1, {0, 0}, {0, 0}};
  int64_t tiles = counts.each;
  int64_t rest;
  if (counts.before != nullptr) {
    if (item >= counts.before[counts.owners] * heads) return work;
    work.owner = find_owner(counts, heads, item);
    const int64_t before = counts.before[work.owner];
    tiles = counts.before[work.owner + 1] - before;
    rest = item - before * heads;
  } else {
    if (item >= counts.owners * heads * tiles) return work;
    work.owner = item / (heads * tiles);
    rest = item - work.owner * heads * tiles;
  }
  work.head = static_cast<int>(rest / tiles);
  work.key_head = static_cast<int>(work.head * arguments.params.heads_k / heads);
  work.tile = static_cast<int>(rest - work.head * tiles);
  work.batch_begin = work.owner * arguments.params.batch / counts.owners;
  work.batch_end = (work.owner + 1) * arguments.params.batch / counts.owners;
  work.queries = arguments.queries(work.batch_begin);
  work.keys = arguments.keys(work.batch_begin);
  return work;
}

/// Puts a CTA's first or next work into shared memory, where it costs the main loop no registers; false when there is
/// none left. All threads call it.
__device__ inline bool take_work(Work& work, const Arguments& arguments, int64_t heads, bool first) {
  __syncthreads();  // all are done with the work before, and with the shared memory that it used
  if (threadIdx.x < 32) {
    const Work found = find_work(arguments, heads, first ? blockIdx.x : work.item + gridDim.x);
    __syncwarp();
    if (threadIdx.x == 0) work = found;
  }
  __syncthreads();
  return work.tile >= 0;
}

struct PrepareArguments {
  /// Tiles to count: of `side`, `tile` rows each, into `before`. A null `before` counts nothing.
  struct Count {
    Sequences side;
    int64_t packed_rows;
    int64_t tile;
    int64_t* before;
  };
  /// Rows to zero: those of a packed output that no sequence has. A null `output.data` zeroes nothing.
  struct Unused {
    Operand output;
    Sequences side;
    int64_t packed_rows;
    int64_t heads;
    int64_t columns;
    int element_bytes;
  };
  int64_t batch;
  Count count[2];
  Unused unused[3];
};

constexpr int prepare_threads = 1024;

/// before[b] = tiles of entries 0 .. b - 1, by one CTA: a scan over 1024 entries at a time.
__device__ inline void count_tiles(const PrepareArguments::Count& count, int64_t batch) {
  __shared__ int64_t of_warp[prepare_threads / 32];
  const int thread = static_cast<int>(threadIdx.x);
  int64_t carried = 0;
  for (int64_t first = 0; first < batch; first += prepare_threads) {
    const int64_t b = first + thread;
    int64_t sum = 0;
    if (b < batch) sum = (rows_of(count.side, b, count.packed_rows).count + count.tile - 1) / count.tile;
    const int64_t own = sum;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int64_t other = __shfl_up_sync(0xffffffffu, sum, distance);
      if (thread % 32 >= distance) sum += other;
    }
    if (thread % 32 == 31) of_warp[thread / 32] = sum;
    __syncthreads();
    int64_t total = 0;
    for (int warp = 0; warp < prepare_threads / 32; ++warp) {
      if (warp == thread / 32) sum += total;
      total += of_warp[warp];
    }
    if (b < batch) count.before[b] = carried + sum - own;
    carried += total;
    __syncthreads();
  }
  if (thread == 0) count.before[batch] = carried;
}

__device__ inline void zero_unused_rows(const PrepareArguments::Unused& unused, int64_t batch) {
  const int64_t used = clamp(unused.side.begin(batch), 0, unused.packed_rows);
  const int64_t row_elements = unused.heads * unused.columns;
  const int64_t elements = (unused.packed_rows - used) * row_elements;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; index < elements;
       index += static_cast<int64_t>(gridDim.x) * blockDim.x) {
    const int64_t row = used + index / row_elements;
    const int64_t head = index % row_elements / unused.columns;
    const int64_t place = unused.output.offset(Sequences{}, 0, row, head) + index % unused.columns;
    if (unused.element_bytes == 2) {
      static_cast<unsigned short*>(unused.output.data)[place] = 0;
    } else {
      static_cast<float*>(unused.output.data)[place] = 0.0f;
    }
  }
}

template <int unique = 0>
__global__ void __launch_bounds__(prepare_threads) prepare(const __grid_constant__ PrepareArguments arguments) {
  if (blockIdx.x < 2 && arguments.count[blockIdx.x].before != nullptr) {
    count_tiles(arguments.count[blockIdx.x], arguments.batch);
  }
  for (const auto& unused : arguments.unused) {
    if (unused.output.data != nullptr) zero_unused_rows(unused, arguments.batch);
  }
}

}  // namespace gdpa::portable
