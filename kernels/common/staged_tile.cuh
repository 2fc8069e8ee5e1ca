// The elements of a dense bias that the scores of a warp read, in shared memory. A load of a fragment from global
// memory touches a row of the bias for each query, so that the L1 cache would limit the kernel. The warp copies whole
// rows instead, with cp.async, while it waits for other things.
#pragma once

#include "common/bias_tile.cuh"
#include "common/index.cuh"
#include "common/lanes.cuh"
#include "common/memory.cuh"

namespace gdpa {

/// A tile of 16 queries, which are its rows, and `columns` keys, in chunks of 16 bytes. Requires that adjacent keys
/// have adjacent elements.
///
/// Aligned rows: the first element of a row of the tile is at a multiple of 16 bytes in global memory. A row of the
/// tile has whole blocks of 128 bytes, and the chunks in a block are permuted by the row, so that the loads of a
/// fragment have no bank conflicts.
///
/// Unaligned rows: a row of the tile begins with the chunk of its first element. The number of elements before it, the
/// shift of the row, differs from row to row. A row has one chunk more, and an odd number of chunks, so that without
/// shifts the loads of a fragment have no bank conflicts.
template <class Inputs, int columns, BiasTile form>
struct StagedTile {
  using Reader = typename Inputs::TileReader;
  using Storage = typename Reader::Storage;
  static constexpr bool is_aligned = form == BiasTile::aligned;
  static constexpr int rows = 16, element_bytes = static_cast<int>(sizeof(Storage)), chunk = 16 / element_bytes;
  static constexpr int row_chunks = columns / chunk;  ///< without shifts
  static constexpr int row_bytes = staged_row_bytes(form, columns * element_bytes);
  static constexpr int bytes = rows * row_bytes;
  static constexpr int groups_of_a_load = is_aligned ? 4 / element_bytes : 1;  ///< groups of 8 columns
  static_assert(element_bytes == 2 || element_bytes == 4, "the two forms of a fragment");

  unsigned base = 0;         ///< the address, a multiple of 128 if the rows are aligned
  int lane_offset;           ///< aligned rows: the offset of the chunk that this lane addresses in group 0
  unsigned lane_address[2];  ///< unaligned rows: the address of the word with the lane's first element, for each row
  unsigned bits_before[2];   ///< unaligned rows: the number of bits in this word before the element
  unsigned fragment[4];      ///< the last elements that were loaded

  StagedTile() = default;
  __device__ __forceinline__ explicit StagedTile(unsigned base_) : base(base_) {
    if (!is_aligned) return;
    const int lane = lane_index();
    // 16-bit elements: the row of matrix lane / 8 in load_matrices. 32-bit elements: two columns of the lane's row.
    const int row = element_bytes == 2 ? lane / 8 % 2 * 8 + lane % 8 : lane / 4;
    lane_offset = element_bytes == 2 ? offset_of(row, lane / 16) : offset_of(row, lane % 4 / 2) + lane % 2 * 8;
  }

  /// The offset of a chunk. The number of a chunk in its block is permuted by an exclusive or if the rows are aligned.
  __device__ __forceinline__ static int offset_of(int row, int index) {
    return row * row_bytes + (index ^ permutation_of(row)) * 16;
  }
  __device__ __forceinline__ static int permutation_of(int row) {
    return !is_aligned ? 0 : element_bytes == 2 ? row % 8 : row % 4 * 2;
  }

  /// The number of elements before the element of key `key` in its chunk.
  __device__ __forceinline__ static int shift_of(const Storage* elements, int key) {
    if (is_aligned) return 0;
    return static_cast<int>(reinterpret_cast<unsigned long long>(elements + key) % 16) / element_bytes;
  }

  /// Begins the copy of a tile. `query` and `key` are the first query and the first key of the tile. All lanes of the
  /// warp call this function. The vote makes the branch uniform for the compiler: a divergent branch would end the
  /// uniform registers of the main loop of the kernel.
  __device__ __forceinline__ void begin_copy(const Inputs& inputs, int query, int key) const {
    constexpr int keys_after = is_aligned ? 0 : chunk - 1;  // at most, in the last chunk of a row
    __syncwarp();  // the lanes have read the preceding tile
    const bool is_whole =
        query + rows - 1 <= inputs.last_tile_query() && key + columns - 1 + keys_after <= inputs.last_tile_key();
    if (__shfl_sync(0xffffffffu, static_cast<int>(is_whole), 0) != 0) {
      copy_whole_tile(inputs, query, key);
    } else {
      copy_part_of_tile(inputs, query, key);
    }
    commit_copies();
  }

  /// Waits until the tile is copied, and prepares its loads. `query` and `key` are the first query and the first key of
  /// the tile. All lanes of the warp call this function.
  __device__ __forceinline__ void finish_copy(const Inputs& inputs, int query, int key) {
    wait_for_copies<0>();
    __syncwarp();
    if (is_aligned) return;
    const int lane = lane_index();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + half * 8;
      const int first_byte = (shift_of(inputs.tile_row(query + row), key) + lane % 4 * 2) * element_bytes;
      lane_address[half] = base + static_cast<unsigned>(row * row_bytes + first_byte / 4 * 4);
      bits_before[half] = static_cast<unsigned>(first_byte % 4 * 8);
    }
  }

  /// Loads the elements of `groups_of_a_load` groups, the first of which is `group`, a multiple of this number.
  __device__ __forceinline__ void load(int group) {
    if constexpr (!is_aligned) {
      load_words(group);
      return;
    }
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
      return Reader::of_pair(fragment[group % groups_of_a_load * 2 + i / 2], i % 2);
    } else {
      return __uint_as_float(fragment[i]);
    }
  }

 private:
  /// A row has 8, 16 or 32 lanes, and a lane copies the same chunk of every rows_at_once-th row. Lanes without a chunk
  /// copy nothing. If a row has 17 chunks, copy_whole_tile() copies the last chunk separately.
  static constexpr int copied_chunks = row_chunks + (is_aligned ? 0 : 1);
  static constexpr int lanes_of_row = copied_chunks <= 8 ? 8 : copied_chunks <= 17 ? 16 : 32;
  static constexpr int rows_at_once = 32 / lanes_of_row;
  static_assert(copied_chunks <= lanes_of_row + 1, "at most one chunk more than lanes");

  __device__ __forceinline__ static const void* chunk_of(const void* element) {
    return reinterpret_cast<const void*>(reinterpret_cast<unsigned long long>(element) / 16 * 16);
  }

  /// Begins the copy of a tile with all of its elements on the axes. A copy has three instructions or, if the rows are
  /// unaligned, four.
  __device__ __forceinline__ void copy_whole_tile(const Inputs& inputs, int query, int key) const {
    const int lane = lane_index(), row = lane / lanes_of_row, index = lane % lanes_of_row;
    const auto to = static_cast<unsigned>(offset_of(row, index));
    const auto step = inputs.tile_row_bytes() * rows_at_once;
    const Storage* from = inputs.tile_row(query + row) + (key + index * chunk);
    if (index < copied_chunks) {
#pragma unroll
      for (int i = 0; i < rows; i += rows_at_once) {
        const auto at = (to ^ static_cast<unsigned>(permutation_of(i) * 16)) + static_cast<unsigned>(i * row_bytes);
        copy_async(base + at, is_aligned ? from : chunk_of(from), true);
        from = index::element(from, step);
      }
    }
    if (copied_chunks > lanes_of_row && lane < rows) {
      const auto at = static_cast<unsigned>(offset_of(lane, lanes_of_row));
      copy_async(base + at, chunk_of(inputs.tile_row(query + lane) + (key + lanes_of_row * chunk)), true);
    }
  }

  /// Begins the copy of a tile with elements after the end of an axis, or copies it. Keys after the end of the axis are
  /// after the end of the sequence, or have the last element of the axis. Elements of the last chunk of an axis are
  /// copied one by one: the other bytes of the chunk may be after the end of the tensor, and compute-sanitizer reports
  /// a cp.async of a part of such a chunk.
  __device__ __forceinline__ void copy_part_of_tile(const Inputs& inputs, int query, int key) const {
    const int last = inputs.last_tile_key();
    const bool is_clamped = last + 1 < min(key + columns, inputs.pair.length_k);
#pragma unroll 1
    for (int number = lane_index(); number < rows * copied_chunks; number += 32) {
      const int row = number / copied_chunks, index = number % copied_chunks;
      const Storage* const elements = inputs.tile_row(query + row);
      const int first = key + index * chunk - shift_of(elements, key);
      const unsigned to = base + static_cast<unsigned>(offset_of(row, index));
      const int valid = last + 1 - first;  // elements of the chunk, and of later chunks
      if (!is_clamped && (valid <= 0 || valid >= chunk)) {
        copy_async(to, elements + first, valid > 0);
        continue;
      }
#pragma unroll
      for (int i = 0; i < chunk; ++i) {
        store_shared_element(to + static_cast<unsigned>(i * element_bytes),
                             __ldg(elements + max(0, min(first + i, last))));
      }
    }
  }

  /// Loads the elements of a group with unaligned rows. Two adjacent elements of 16 bits are in one word or in two.
  __device__ __forceinline__ void load_words(int group) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned address = lane_address[half] + static_cast<unsigned>(group * 8 * element_bytes);
      const unsigned low = load_shared(address), high = load_shared(address + 4);
      if constexpr (element_bytes == 2) {
        fragment[half] = __funnelshift_r(low, high, bits_before[half]);
      } else {
        fragment[half * 2] = low;
        fragment[half * 2 + 1] = high;
      }
    }
  }
};

template <class Inputs, int columns>
struct StagedTile<Inputs, columns, BiasTile::none> {
  static constexpr int bytes = 0;

  StagedTile() = default;
  __device__ __forceinline__ explicit StagedTile(unsigned) {}
  __device__ __forceinline__ void begin_copy(const Inputs&, int, int) const {}
  __device__ __forceinline__ void finish_copy(const Inputs&, int, int) const {}
};

}  // namespace gdpa
