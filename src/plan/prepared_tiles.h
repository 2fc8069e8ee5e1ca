// PreparedTiles: the tile lists of a mask expression that gdpa::prepare_mask keeps in memory of the caller, and the
// calls that they are for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "definition/problem.h"
#include "definition/tile_lists.h"

namespace gdpa::plan {

/// The lists of partner tiles for kernels with tiles of one size (TileLists). Offsets are in bytes, in the workspace or
/// in the memory of a prepared mask.
struct TileListsPlan : TileListSizes {
  bool has_query_lists = false;
  int64_t entries = 0;
  int64_t key_tiles = 0;
  int64_t query_tiles = 0;

  bool is_of(int queries, int keys) const { return tile_queries == queries && tile_keys == keys; }
};

/// Everything that the lists of a call depend on, apart from the sizes of its tiles, the numbers of its offsets and the
/// elements of the tensors of its mask.
struct ListedCall {
  int64_t batch = 0;
  int64_t rows_q = 0;
  int64_t rows_k = 0;
  int64_t heads_q = 0;
  int64_t heads_k = 0;
  Form query_form = Form::jagged;
  Form key_form = Form::jagged;
  Device device;      ///< of the operands and of the lists
  uint64_t mask = 0;  ///< a hash of the condition and of the types of its tensors

  static ListedCall of(const Problem& problem, const std::string& mask_identity);
};

struct PreparedTiles {
  ListedCall call;
  std::vector<TileListsPlan> lists;  ///< none on the CPU
  int64_t bytes = 0;
  void* data = nullptr;  ///< no part of the text

  /// A text without spaces at its ends. The text of PreparedMask::tiles.
  std::string text() const;

  /// Throws Error (value) if the text is not from text().
  static PreparedTiles of_text(const std::string& text);
};

}  // namespace gdpa::plan
