// Keys and values that stream through shared memory for a tile of queries: the list of key tiles that the mask makes,
// the stage of each tile, and the copies ahead of time.
//
// Config: struct with
//     using Element;                            types.cuh
//     using Mask, Inputs;                       window_mask.cuh, no_inputs.cuh
//     using Layout, Epilogue;                   packed_layout.cuh, epilogues.cuh
//     int head_dim, head_dim_v;                 multiples of 8, at most 256
//     int tile_queries, tile_keys;              multiples of 16 * warps and of 16
//     int warps, column_warps, stages;          along the queries; along the columns of the result
//     int ctas;                                 CTAs that have to fit on one multiprocessor
//     bool aligned;                             every row of every operand begins at a multiple of 16 bytes
#pragma once

#include "common/sequence.cuh"
#include "common/tile.cuh"

namespace gdpa::portable {

/// Buffers for `stages` tiles of keys and values, and the rows and columns of a warp of the CTA. A position counts the
/// key tiles in the list.
template <class Config>
struct KeyStream {
  using Element = typename Config::Element;
  using Storage = typename Element::Storage;
  static constexpr int threads = Config::warps * Config::column_warps * 32;
  static constexpr int row_tiles = Config::tile_queries / Config::warps / 16;
  static constexpr int warp_columns = columns_of_warp(Config::head_dim, Config::column_warps);
  static constexpr int warp_columns_v = columns_of_warp(Config::head_dim_v, Config::column_warps);
  using KeyTile = SharedTile<Element, warp_columns * Config::column_warps>;
  using ValueTile = SharedTile<Element, warp_columns_v * Config::column_warps>;
  static constexpr int key_bytes = KeyTile::bytes(Config::tile_keys);
  static constexpr int stage_bytes = key_bytes + ValueTile::bytes(Config::tile_keys);
  static constexpr int bytes = Config::stages * stage_bytes;
  static constexpr int ahead = Config::stages - 1;  ///< tiles copied before they are needed

  /// The first of the 16 * row_tiles rows of the warp, and its number among the warps that split the columns.
  __device__ static int warp_row() { return warp_index() / Config::column_warps * (row_tiles * 16); }
  __device__ static int column_warp() { return warp_index() % Config::column_warps; }

  // References into shared memory: the values are read when a copy starts, and occupy no registers in between.
  const Params& params;
  const int64_t& b;
  const int& head;  ///< of keys
  const Rows& keys;
  unsigned shared;
  typename Config::Mask::Tiles tiles;

  __device__ KeyStream(const Params& params_, const int64_t& b_, const int& head_, const Rows& keys_, unsigned shared_,
                       const typename Config::Mask::Tiles& tiles_)
      : params(params_), b(b_), head(head_), keys(keys_), shared(shared_), tiles(tiles_) {}

  /// The first key of the tile at a position.
  __device__ int first_key(int position) const {
    return tiles.first_row + tiles.row_offset(position, Config::tile_keys);
  }

  __device__ KeyTile key_tile(int position) const {
    return {shared + static_cast<unsigned>(position % Config::stages * stage_bytes)};
  }
  __device__ ValueTile value_tile(int position) const { return {key_tile(position).base + key_bytes}; }

  template <int columns, class Tile>
  __device__ void load_operand(Tile tile, const Operand& operand, int row) const {
    using Layout = typename Config::Layout;
    constexpr int step = Layout::contiguous_keys(Config::tile_keys);
    for (int first = 0; first < Config::tile_keys; first += step) {
      load_rows<threads, Config::aligned, step, columns>(
          tile.from_row(first),
          static_cast<const Storage*>(operand.data) +
              Layout::offset_of_key(operand, params.keys, keys, b, row + first, head),
          operand.row_stride, keys.count - row - first);
    }
  }

  /// Starts the copy of the tile at a position, if the list has this position. Each call commits one group of copies.
  __device__ void load(int position) const {
    if (position < tiles.size()) {
      load_operand<Config::head_dim>(key_tile(position), params.key, first_key(position));
      load_operand<Config::head_dim_v>(value_tile(position), params.value, first_key(position));
    }
    commit_copies();
  }

  /// Starts the first copies. The copies of the queries, which the caller has started, are in a group of their own; the
  /// caller waits for them also if the list is empty and advance() is never called.
  __device__ void start() const {
    commit_copies();
    for (int position = 0; position < ahead; ++position) load(position);
  }

  /// Makes the tile at a position readable by all threads, and starts the copy of a later tile into the buffer of the
  /// previous one.
  __device__ void advance(int position) const {
    advance_stage<Config::stages>([&] { load(position + ahead); });
  }
};

}  // namespace gdpa::portable
