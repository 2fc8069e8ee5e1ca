// Config::Layout of forward kernels with TMA for keys and values in pages (common/paged_layout.cuh): a tile of keys is
// loaded in several boxes, each from one page.
#pragma once

#include "common/paged_layout.cuh"
#include "pipeline/packed_layout.cuh"

namespace gdpa::pipeline {

/// `box_keys`, the keys of a box, divides the rows of a page and the keys of a tile.
template <int box_keys>
struct PagedLayout : PackedLayout {
  GDPA_HOST_DEVICE static Rows rows_of(const Sequences& side, int64_t b, int64_t packed_rows) {
    return gdpa::PagedLayout::rows_of(side, b, packed_rows);
  }

  /// For keys in pages, only x: the row of the sequence. The table of pages gives the coordinates of each box.
  __device__ static MapOrigin origin_of(const MappedOperand& operand, const Sequences& side, const Rows& rows,
                                        int64_t b, int row) {
    if (side.has_pages()) return {row, 0};
    return PackedLayout::origin_of(operand, side, rows, b, row);
  }

  /// The boxes of a tile of keys.
  template <int boxes>
  struct KeyRows {
    int first_row;     ///< of the first box in its page
    int left;          ///< keys of the sequence from the first box on
    int pages[boxes];  ///< of each box with a key

    /// A box after the last key begins at the last key. It must begin before the extent, and it has to fill its memory,
    /// because V of masked keys must be finite. The mask excludes the repeated key.
    template <class Tile>
    __device__ void load(const Tile& to, const MappedOperand& operand, unsigned barrier, int head,
                         const MapOrigin& /*origin*/) const {
      const int page_rows = operand.extent;
      int row = first_row;
      MapOrigin at{};
#pragma unroll
      for (int i = 0; i < boxes; ++i) {
        if (i == 0 || left > i * box_keys) {
          const int page_keys = min(page_rows, row + left - i * box_keys);
          at = {page_rows - page_keys + row, pages[i] * operand.batch_step + page_keys};
        } else {
          at.x = page_rows - 1;
        }
        to.from_row(i * box_keys).load(operand.map, barrier, head, at);
        row += box_keys;
        if (row == page_rows) row = 0;
      }
    }
  };

  /// Reads the table of pages.
  template <int tile_keys, class QueryTile>
  __device__ static auto key_rows(const MappedOperand& operand, const Sequences& keys, const QueryTile& tile,
                                  int offset) {
    static_assert(tile_keys % box_keys == 0, "a tile has whole boxes");
    constexpr int boxes = tile_keys / box_keys;
    const int page_rows = operand.extent, first = tile.key.x + offset, first_column = first / page_rows;
    KeyRows<boxes> result{first - first_column * page_rows, tile.length_k - first, {}};
    int column = first_column, row = result.first_row;  // of a box
#pragma unroll
    for (int i = 0; i < boxes; ++i) {
      // The table may have no column after the last key. No load is conditional, so that they overlap.
      result.pages[i] = static_cast<int>(keys.page_at(tile.b, result.left > i * box_keys ? column : first_column));
      row += box_keys;
      if (row == page_rows) {
        row = 0;
        ++column;
      }
    }
    return result;
  }
};

}  // namespace gdpa::pipeline
