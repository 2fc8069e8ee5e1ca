// TileLists: the arrays with the lists of partner tiles of a mask expression, for the kernels of a call that have tiles
// of one size. kernels/portable/list_tiles.cuh writes the lists, and kernels/common/expression_mask.cuh reads them. The
// header includes no standard library, because NVRTC compiles it too.
#pragma once

#include "gdpa/integers.h"

namespace gdpa {

/// Where the lists of a batch entry are, and the lengths of its sequences when they were made. Lists that are kept for
/// several calls (prepare_mask) are used only for entries with these lengths.
struct ListedEntry {
  int64_t first;  ///< the sum of (q + 1) (k + 1) over the entries before this one; -1: there is no memory for its lists
  int32_t length_q;
  int32_t length_k;

  GDPA_HOST_DEVICE bool is_of(int lengths_q, int lengths_k) const {
    return first >= 0 && length_q == lengths_q && length_k == lengths_k;
  }
};

/// The sizes of the lists.
struct TileListSizes {
  int tile_queries = 0;
  int tile_keys = 0;
  /// Lists for each entry: 1, or one for each key head. The query heads of a key head have one list, which has the
  /// tiles of all of them.
  int heads = 1;
  int heads_of_list = 1;  ///< query heads whose masks may differ and that have the same list
  int64_t capacity = 0;   ///< the sum over all entries of (q + 1) (k + 1) for which the arrays have memory
};

/// Entry b with q query tiles and k key tiles has, for each list head h, q lists of at most k key tiles and k lists of
/// at most q query tiles. A list of key tiles is its length, and k elements. A list of query tiles is its length, q
/// elements, one unused number, and the number of the key tile in the list of each of these query tiles.
///
/// An element is tile * 8 + flags (TileList).
struct TileLists : TileListSizes {
  ListedEntry* entries = nullptr;
  int* key_tiles = nullptr;
  int* query_tiles = nullptr;  ///< null in forward

  GDPA_HOST_DEVICE int64_t key_list(const ListedEntry& entry, int head, int query_tile, int query_tiles_,
                                    int key_tiles_) const {
    return heads * entry.first + (int64_t{head} * query_tiles_ + query_tile) * (key_tiles_ + 1);
  }
  GDPA_HOST_DEVICE int64_t query_list(const ListedEntry& entry, int head, int key_tile, int query_tiles_,
                                      int key_tiles_) const {
    return 2 * (heads * entry.first + (int64_t{head} * key_tiles_ + key_tile) * (query_tiles_ + 1));
  }
};

/// The flags of an element of a list.
struct TileList {
  enum : int { full = 1, first_writer = 2, last_writer = 4 };
  static constexpr int flag_bits = 3;
};

/// A call has at most so many kernels with different sizes of tiles.
constexpr int most_tile_lists = 4;

}  // namespace gdpa
