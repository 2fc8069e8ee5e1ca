// The elements of a dense bias that the scores of a warp read, in shared memory. A load of a fragment from global memory
// touches a row of the bias for each query, so that the L1 cache would limit the kernel. The warp copies whole rows
// instead, with cp.async, while it waits for other things.
#pragma once

#include "common/lanes.cuh"
#include "common/memory.cuh"

namespace gdpa {

/// A tile of 16 queries, which are its rows, and `columns` keys. A row has whole blocks of 128 bytes, and the chunks of
/// 16 bytes in a block are permuted by the row, so that the loads of a fragment have no bank conflicts. Requires that
/// adjacent keys have adjacent elements, and that row 0 of each batch entry and head, and each row, begins at a multiple
/// of 16 bytes.
template <class Bias, int columns, bool exists>
struct StagedTile {
  using Reader = typename Bias::TileReader;
  using Storage = typename Reader::Storage;
  static constexpr int rows = 16, element_bytes = static_cast<int>(sizeof(Storage)), chunk = 16 / element_bytes;
  static constexpr int row_chunks = columns / chunk, chunks = rows * row_chunks;
  static constexpr int row_bytes = (columns * element_bytes + 127) / 128 * 128;
  static constexpr int bytes = rows * row_bytes;
  static constexpr int groups_of_a_load = 4 / element_bytes;  ///< groups of 8 columns
  static_assert(chunks % 32 == 0, "all lanes copy equally many chunks");
  static_assert(element_bytes == 2 || element_bytes == 4, "the two forms of a fragment");

  unsigned base = 0;  ///< the address, a multiple of 128
  int lane_offset;    ///< of the chunk whose address this lane has in the loads of group 0
  unsigned fragment[4];  ///< the last elements that were loaded

  StagedTile() = default;
  __device__ __forceinline__ explicit StagedTile(unsigned base_) : base(base_) {
    const int lane = lane_index();
    // 16-bit elements: the row of matrix lane / 8 in load_matrices. 32-bit elements: two columns of the lane's row.
    const int row = element_bytes == 2 ? lane / 8 % 2 * 8 + lane % 8 : lane / 4;
    lane_offset = element_bytes == 2 ? offset_of(row, lane / 16) : offset_of(row, lane % 4 / 2) + lane % 2 * 8;
  }

  /// The offset of a chunk. The number of a chunk in its block is permuted by an exclusive or.
  __device__ __forceinline__ static int offset_of(int row, int index) {
    const int permutation = element_bytes == 2 ? row % 8 : row % 4 * 2;
    return row * row_bytes + (index ^ permutation) * 16;
  }

  /// Begins the copy of the tile whose first query is `query` and first key is `key`. By all lanes of the warp. The
  /// branch is uniform for the compiler: a divergent one would end the uniform registers of the main loop of the kernel.
  __device__ __forceinline__ void begin_copy(const Bias& bias, int query, int key) const {
    const int lane = lane_index();
    const int last = bias.last_tile_key();
    __syncwarp();  // the lanes have read the preceding tile
    const bool is_clamped = last + 1 < min(key + columns, bias.pair.length_k);
    if (__shfl_sync(0xffffffffu, static_cast<int>(is_clamped), 0) == 0) {
      // Keys after the end of the axis are after the end of the sequence.
#pragma unroll
      for (int i = 0; i < chunks / 32; ++i) {
        const int row = (i * 32 + lane) / row_chunks, index = (i * 32 + lane) % row_chunks;
        const int first = key + index * chunk;
        const int valid = max(0, min(chunk, last + 1 - first));
        copy_async_bytes(base + static_cast<unsigned>(offset_of(row, index)), bias.tile_row(query + row) + first,
                         valid * element_bytes);
      }
      commit_copies();
      return;
    }
#pragma unroll 1
    for (int number = lane; number < chunks; number += 32) {
      const int row = number / row_chunks, index = number % row_chunks;
      const Storage* const elements = bias.tile_row(query + row);
      const unsigned to = base + static_cast<unsigned>(offset_of(row, index));
#pragma unroll
      for (int i = 0; i < chunk; ++i) {
        store_shared_element(to + static_cast<unsigned>(i * element_bytes),
                             __ldg(elements + min(key + index * chunk + i, last)));
      }
    }
  }

  /// Waits for the copies of the warp. By all lanes.
  __device__ __forceinline__ void finish_copy() const {
    wait_for_copies<0>();
    __syncwarp();
  }

  /// Loads the elements of `groups_of_a_load` groups, the first of which is `group`, a multiple of this number.
  __device__ __forceinline__ void load(int group) {
    constexpr int block_groups = 128 / (8 * element_bytes);
    const int in_block = group % block_groups * 8 * element_bytes;
    const unsigned address =
        base + static_cast<unsigned>((lane_offset ^ in_block) + group / block_groups * 128);
    if constexpr (element_bytes == 2) {
      load_matrices(fragment, address);
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2 pair = load_shared_pair(address + static_cast<unsigned>(half * 8 * row_bytes));
        fragment[half * 2] = pair.x;
        fragment[half * 2 + 1] = pair.y;
      }
    }
  }

  /// The element of score i of a group, as in an accumulator: scores 0 and 1 are in the first row.
  __device__ __forceinline__ float element(int group, int i) const {
    if constexpr (element_bytes == 2) {
      return Reader::of_pair(fragment[group % 2 * 2 + i / 2], i % 2);
    } else {
      return __uint_as_float(fragment[i]);
    }
  }
};

template <class Bias, int columns>
struct StagedTile<Bias, columns, false> {
  static constexpr int bytes = 0;

  StagedTile() = default;
  __device__ __forceinline__ explicit StagedTile(unsigned) {}
  __device__ __forceinline__ void begin_copy(const Bias&, int, int) const {}
  __device__ __forceinline__ void finish_copy() const {}
};

}  // namespace gdpa
