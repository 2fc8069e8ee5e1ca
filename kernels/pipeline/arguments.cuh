// The arguments of kernels with TMA whose CTAs own query tiles. Plain structs: the host includes this file too.
#pragma once

#include "common/arguments.cuh"
#include "pipeline/tensor_map.cuh"

namespace gdpa::pipeline {

/// An operand as a tensor map. `extent` is the extent of x. `batch_step` is the step of y from one batch entry to the
/// next if the operand is not packed: 1, or 0 for an operand that the batch shares. If the operand is in pages,
/// `batch_step` is the step of y from one page to the next.
struct MappedOperand {
  TensorMap map;
  int extent;
  int batch_step;
};

/// The first token of entry b. The sequence of the entry has `count` rows, and `at` are the map coordinates of one of
/// them. On a jagged side, `at.y` is the end of the sequence, so that no cumulative length is loaded.
GDPA_HOST_DEVICE inline int64_t first_row_at(const Sequences& side, const MapOrigin& at, int count, int64_t b) {
  return side.is_jagged() ? at.y - count : side.first_row(b);
}

/// The order of the query tiles (tile_range.cuh).
enum class TileOrder : int {
  strided,     ///< a CTA has every gridDim-th tile
  contiguous,  ///< a CTA has consecutive tiles, so that K and V can stay in shared memory
  dynamic      ///< a CTA takes the next tiles from a counter when its queue is nearly empty
};

/// The query tiles that the tile scheduler finds at once, one for each of its lanes.
constexpr int most_tiles_at_once = 16;

/// How the query tiles are distributed to the CTAs.
struct TileDistribution {
  TileOrder order = TileOrder::strided;
  unsigned taken_at_once = 1;  ///< dynamic: the number of tiles that a CTA takes at once
};

/// Arguments of the kernels whose CTAs own query tiles.
struct QueryMajorArguments {
  CommonArguments common;
  float scale;  ///< scale of params; as a constant operand it occupies no register
  TileDistribution tiles;
  unsigned* tiles_taken;  ///< dynamic order: the number of tiles that all CTAs have taken; zeroed before the launch
  MappedOperand query, key, value;
  MappedOperand output;  ///< forward: O; parameter_gradients: dO, which has the rows of O
};

}  // namespace gdpa::pipeline
