// A tile of an operand in shared memory, in the layout of TMA and WGMMA with 128-byte swizzle: blocks of 64 columns,
// rows of 128 bytes in a block, and the 16-byte chunks of a row permuted by the index of the row modulo 8.
#pragma once

#include "common/tile.cuh"
#include "hopper/arguments.cuh"
#include "hopper/wgmma.cuh"
#include "pipeline/barrier.cuh"
#include "pipeline/tensor_map.cuh"
#include "pipeline/warpgroup.cuh"

namespace gdpa::hopper {

/// The number of rows is a multiple of 8. Columns are padded with zeros to whole blocks. `base` is a multiple of 1024.
template <int rows_, int columns_>
struct SwizzledTile {
  static constexpr int rows = rows_;
  static constexpr int blocks = (columns_ + box_columns - 1) / box_columns;
  static constexpr int columns = blocks * box_columns;
  static constexpr int row_bytes = 128;
  static constexpr int block_bytes = rows * row_bytes;
  static constexpr int bytes = blocks * block_bytes;

  unsigned base;

  __device__ __forceinline__ SwizzledTile stage(int index) const {
    return {base + static_cast<unsigned>(index * bytes)};
  }

  /// The tile from row `row` on, a multiple of 8.
  __device__ __forceinline__ SwizzledTile from_row(int row) const {
    return {base + static_cast<unsigned>(row * row_bytes)};
  }

  /// The address of a chunk of eight columns.
  __device__ __forceinline__ unsigned chunk(int row, int index) const {
    // Unsigned: a remainder of a signed number takes four instructions.
    const auto of_row = static_cast<unsigned>(row), of_index = static_cast<unsigned>(index);
    return base + of_index / 8 * block_bytes + of_row * row_bytes + (of_index % 8 ^ of_row % 8) * 16;
  }

  /// The tile as an operand of products over its columns, 16 in each: row m of A, or column n of B, is a row of the
  /// tile. And as operand B, transposed, of products over its rows: row k of B is row k of the tile.
  __device__ __forceinline__ OperandDescriptor by_columns() const { return {base / 16, 1}; }
  __device__ __forceinline__ OperandDescriptor by_rows() const { return {base / 16, block_bytes / 16}; }
  static constexpr unsigned column_step(int step) { return step / 4 * (block_bytes / 16) + step % 4 * 2; }
  static constexpr unsigned row_step(int step) { return step * row_bytes; }

  /// Starts the TMA loads of all blocks. By one thread.
  __device__ void load(const TensorMap& map, unsigned barrier, int head, const MapOrigin& at) const {
#pragma unroll
    for (int block = 0; block < blocks; ++block) {
      tma_load(base + static_cast<unsigned>(block * block_bytes), map, barrier, block * box_columns, head, at);
    }
  }
  /// The same, where these bytes alone fill a stage.
  __device__ void fill(const Barrier& full, const TensorMap& map, int head, const MapOrigin& at) const {
    full.arrive_and_expect(bytes);
    load(map, full.address, head, at);
  }
  __device__ void store(const TensorMap& map, int first_column, int head, const MapOrigin& at) const {
#pragma unroll
    for (int block = 0; block < blocks; ++block) {
      tma_store(map, base + static_cast<unsigned>(block * block_bytes), first_column + block * box_columns, head, at);
    }
  }
};

/// A tile for TMA alone, of 64 or of 32 columns. TMA swizzles rows of 64 bytes in pairs.
template <int columns_>
struct NarrowTile {
  static constexpr int row_bytes = columns_ * 2;
  static_assert(row_bytes == 128 || row_bytes == 64, "the two swizzles");

  unsigned base;

  /// The address of a chunk of eight columns.
  __device__ __forceinline__ unsigned chunk(int row, int index) const {
    const int swizzle = row_bytes == 128 ? row % 8 : row / 2 % 4;
    return base + static_cast<unsigned>(row * row_bytes + (index ^ swizzle) * 16);
  }
};

/// Stores four 8 x 8 matrices of 16-bit elements. Lane i has the address of row i % 8 of matrix i / 8.
__device__ inline void store_matrices(unsigned address, const unsigned (&matrix)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(matrix[0]),
               "r"(matrix[1]), "r"(matrix[2]), "r"(matrix[3])
               : "memory");
}

/// Makes the writes of a warp to shared memory visible to TMA and WGMMA, and arrives once for the warp.
__device__ __forceinline__ void fence_and_arrive_by_warp(const Barrier& barrier) {
  fence_proxy_async_shared();
  __syncwarp();
  if (thread_in_warpgroup() % 32 == 0) barrier.arrive();
}

}  // namespace gdpa::hopper
