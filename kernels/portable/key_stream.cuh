// Keys and values that stream through shared memory for a tile of queries: the range of keys that the mask leaves, the
// buffer of each tile, and the copies ahead of time.
#pragma once

#include "common/sequence.cuh"
#include "common/tile.cuh"

namespace gdpa::portable {

/// Buffers for `stages` tiles of keys and values. Config: Element, head_dim, head_dim_v, tile_keys, warps,
/// column_warps, stages, aligned.
template <class Config>
struct KeyStream {
  using Element = typename Config::Element;
  using Storage = typename Element::Storage;
  static constexpr int threads = Config::warps * Config::column_warps * 32;
  static constexpr int warp_columns = columns_of_warp(Config::head_dim, Config::column_warps);
  static constexpr int warp_columns_v = columns_of_warp(Config::head_dim_v, Config::column_warps);
  using KeyTile = SharedTile<Element, warp_columns * Config::column_warps>;
  using ValueTile = SharedTile<Element, warp_columns_v * Config::column_warps>;
  static constexpr int key_bytes = KeyTile::bytes(Config::tile_keys);
  static constexpr int stage_bytes = key_bytes + ValueTile::bytes(Config::tile_keys);
  static constexpr int bytes = Config::stages * stage_bytes;
  static constexpr int ahead = (Config::stages - 1) * Config::tile_keys;  ///< keys copied before they are needed

  // References into shared memory: the values are read when a copy starts, and occupy no registers in between.
  const Params& params;
  const int64_t& b;
  const int& head;  ///< of keys
  const Rows& keys;
  unsigned shared;
  int begin;  ///< first key of the first tile that has a valid key
  int end;    ///< end of the valid range

  __device__ KeyStream(const Params& params_, const int64_t& b_, const int& head_, const Rows& keys_, unsigned shared_,
                       const ValidRange& valid)
      : params(params_),
        b(b_),
        head(head_),
        keys(keys_),
        shared(shared_),
        begin(valid.begin / Config::tile_keys * Config::tile_keys),
        end(valid.begin + valid.count) {}

  __device__ KeyTile key_tile(int row) const {
    return {shared + static_cast<unsigned>(row / Config::tile_keys % Config::stages * stage_bytes)};
  }
  __device__ ValueTile value_tile(int row) const { return {key_tile(row).base + key_bytes}; }

  template <int columns, class Tile>
  __device__ void load_operand(Tile tile, const Operand& operand, int row) const {
    load_rows<threads, Config::aligned, Config::tile_keys, columns>(
        tile, static_cast<const Storage*>(operand.data) + element_offset(operand, keys, b, row, head),
        operand.row_stride, keys.count - row);
  }

  /// Starts the copy of the tile whose first key is `row`, if there is one. Each call commits one group of copies.
  __device__ void load(int row) const {
    if (row < end) {
      load_operand<Config::head_dim>(key_tile(row), params.key, row);
      load_operand<Config::head_dim_v>(value_tile(row), params.value, row);
    }
    commit_copies();
  }

  /// Starts the first copies. The copies of the queries, which the caller has started, are in a group of their own; the
  /// caller waits for them also where the valid range is empty and advance() is never called.
  __device__ void start() const {
    commit_copies();
    for (int row = 0; row < ahead; row += Config::tile_keys) load(begin + row);
  }

  /// Makes the tile at `row` readable by all threads, and starts the copy of a later tile into the buffer of the
  /// previous one.
  __device__ void advance(int row) const {
    if constexpr (Config::stages == 1) {
      __syncthreads();
      load(row);
      wait_for_copies<0>();
      __syncthreads();
    } else {
      wait_for_copies<Config::stages - 2>();
      __syncthreads();
      load(row + ahead);
    }
  }
};

}  // namespace gdpa::portable
