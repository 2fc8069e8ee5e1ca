// A list of partner tiles in memory, which may skip tiles. kernels/portable/list_tiles.cuh writes it.
#pragma once

#include "definition/tile_lists.h"

namespace gdpa {

/// The tiles of a list. Without elements the list has the tiles 0 to count - 1, and each is partial: the lists of a
/// call have a limited size.
struct ListedTiles {
  static constexpr int first_row = 0;

  const int* elements;
  int count;

  __device__ int size() const { return count; }
  __device__ bool is_full(int position) const {
    return elements != nullptr && (__ldg(elements + position) & TileList::full) != 0;
  }
  __device__ int row_offset(int position, int tile_rows) const {
    return (elements == nullptr ? position : __ldg(elements + position) >> TileList::flag_bits) * tile_rows;
  }
  __device__ int last_number(int /*tile_rows*/) const { return count - 1; }

  template <class IsSame>
  __device__ bool has_same_tiles(IsSame is_same) const {
    const auto address = reinterpret_cast<unsigned long long>(elements);
    const bool same_low = is_same(static_cast<int>(address)), same_high = is_same(static_cast<int>(address >> 32));
    return is_same(count) && same_low && same_high;
  }
};

/// The first and last writers of dQ in a list of query tiles.
struct ListedWriters {
  const int* elements;
  int numbers;  ///< from an element to the number of the key tile in the list of the query tile
  int flags;    ///< without elements: the flags of all query tiles

  __device__ bool is_first(int position) const { return (flags_at(position) & TileList::first_writer) != 0; }
  __device__ bool is_last(int position) const { return (flags_at(position) & TileList::last_writer) != 0; }
  __device__ int number_of(int position, int key_tile) const {
    return elements == nullptr ? key_tile : __ldg(elements + position + numbers);
  }

 private:
  __device__ int flags_at(int position) const { return elements == nullptr ? flags : __ldg(elements + position); }
};

}  // namespace gdpa
