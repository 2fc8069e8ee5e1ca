// The list of the partner tiles of a tile: the key tiles that a query tile attends to, or the query tiles that attend
// to a key tile. A mask makes the list on the device (window_mask.cuh). A kernel visits the positions 0 to size() - 1
// in order. Nothing in a kernel depends on how the list is stored, and a list may skip tiles.
#pragma once

#include "gdpa/integers.h"

namespace gdpa {

/// Positions [begin, end) of a list.
struct Positions {
  int begin;
  int end;

  GDPA_HOST_DEVICE bool holds(int position) const { return position >= begin && position < end; }
};

/// Consecutive partner tiles. The list is a few numbers, and needs no memory. A list of another kind has the same
/// members, apart from `count`.
struct ContiguousTiles {
  int count;
  Positions full;  ///< the full tiles: no score is masked, or beyond the sequences
  int first_row;   ///< the row of the sequence from which row_offset() counts

  GDPA_HOST_DEVICE int size() const { return count; }
  GDPA_HOST_DEVICE bool is_full(int position) const { return full.holds(position); }

  /// The rows from `first_row` to the first row of the tile at a position. Tiles have `tile_rows` rows.
  GDPA_HOST_DEVICE static int row_offset(int position, int tile_rows) { return position * tile_rows; }

  /// The number of the last tile (ContiguousWriters::number_of).
  GDPA_HOST_DEVICE int last_number(int tile_rows) const { return first_row / tile_rows + count - 1; }

  /// Whether another list has the same tiles. is_same(number) compares a number with the number of the other list.
  template <class IsSame>
  GDPA_HOST_DEVICE bool has_same_tiles(IsSame is_same) const {
    const bool same_count = is_same(count), same_first = is_same(first_row);  // a warp evaluates both
    return same_count && same_first;
  }
};

/// The query tiles of a list for which the key tile is the first or the last writer of dQ: it has the last or the first
/// position in the list of key tiles of the query tile (hopper/dq_semaphore.cuh).
struct ContiguousWriters {
  Positions first;
  Positions last;

  GDPA_HOST_DEVICE bool is_first(int position) const { return first.holds(position); }
  GDPA_HOST_DEVICE bool is_last(int position) const { return last.holds(position); }

  /// The number of this key tile among the key tiles of the query tile at a position. The next key tile of the query
  /// tile has the next number, and the first one may have any number. A contiguous list numbers a key tile by its index
  /// in the sequence. A list that skips tiles numbers it by its position in the list.
  GDPA_HOST_DEVICE static int number_of(int /*position*/, int key_tile) { return key_tile; }
};

}  // namespace gdpa
