// Config::Layout for keys and values in pages: a table has the page of every page_rows rows of an entry. The rows of a
// page are contiguous. Queries have the layout of packed_layout.cuh.
#pragma once

#include "common/packed_layout.cuh"

namespace gdpa {

/// Lengths and page numbers come from the device and may be wrong. They are clamped to the table and to the operand.
struct PagedLayout : PackedLayout {
  /// The rows of a tile of keys that are contiguous: pages have multiples of so many rows.
  static constexpr int contiguous_keys(int tile_keys) {
    return tile_keys < least_page_rows ? tile_keys : least_page_rows;
  }

  GDPA_HOST_DEVICE static Rows rows_of(const Sequences& side, int64_t b, int64_t packed_rows) {
    if (!side.has_pages()) return PackedLayout::rows_of(side, b, packed_rows);
    return {0, static_cast<int>(clamp(side.ends[b], 0, side.length))};
  }

  /// A row after the last one has the address of the first row.
  GDPA_HOST_DEVICE static int64_t offset_of_key(const Operand& operand, const Sequences& side, const Rows& rows,
                                                int64_t b, int64_t row, int64_t h) {
    return operand.offset(side, b, row < rows.count ? row : 0, h);
  }
};

}  // namespace gdpa
