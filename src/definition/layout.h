// Layout: the address of row i of sequence b and head h in each operand, and the length of each sequence. The header
// includes no standard library, because NVRTC compiles it too.
#pragma once

#include "gdpa/integers.h"

namespace gdpa {

/// GPU kernels count the rows of one sequence in 32 bits, and a tile may begin after the last row.
constexpr int64_t most_gpu_rows = 0x7fff0000;

/// Pages have multiples of so many rows.
constexpr int least_page_rows = 16;

/// A vector of int32 or int64.
struct Integers {
  const void* data = nullptr;
  int64_t stride = 1;  ///< in elements
  bool is_int64 = false;

  GDPA_HOST_DEVICE int64_t operator[](int64_t i) const {
    return is_int64 ? static_cast<const int64_t*>(data)[i * stride]
                    : static_cast<int64_t>(static_cast<const int32_t*>(data)[i * stride]);
  }
};

/// The queries, or the keys, of every batch entry. Sequence s of a jagged side has the rows [begins[s], ends[s]) of the
/// operand. With cumulative lengths, `ends` begins one number after `begins`. Sequences of a side that is not jagged
/// have `length` rows each. Batch entry b has sequence b, or with a batch map the sequence map[b].
struct Sequences {
  Integers begins;  ///< null data: the side is not jagged
  Integers ends;
  int64_t length = 0;
  int64_t token_stride = 0;  ///< rows from one sequence to the next if they are dense; 0 if they are shared or jagged
  Integers map;              ///< null data: there is no batch map
  int64_t sequences = 0;     ///< with a batch map: their number, to which the device clamps the map
  /// The page of rows [n page_rows, (n + 1) page_rows) of entry b is pages[b pages_stride + n].
  Integers pages;  ///< null data: the side has no pages. Otherwise `ends` are the lengths
  int64_t pages_stride = 0;
  int64_t page_rows = 0;
  int64_t page_count = 0;  ///< pages of the operand, to which the device clamps
  /// In kernels, null for cumulative lengths without a batch map: the rows of the entries before each entry, and of
  /// all.
  const int64_t* rows_before = nullptr;

  /// Sequences with cumulative lengths: one number more than there are sequences.
  GDPA_HOST_DEVICE static Sequences cumulative(const void* numbers, bool is_int64) {
    const void* const second = static_cast<const char*>(numbers) + (is_int64 ? sizeof(int64_t) : sizeof(int32_t));
    Sequences side;
    side.begins = {numbers, 1, is_int64};
    side.ends = {second, 1, is_int64};
    return side;
  }

  GDPA_HOST_DEVICE bool is_jagged() const { return begins.data != nullptr; }
  GDPA_HOST_DEVICE bool has_pages() const { return pages.data != nullptr; }

  /// The page in column `column` of the table, of entry b.
  GDPA_HOST_DEVICE int64_t page_at(int64_t b, int64_t column) const {
    const int64_t page = pages[b * pages_stride + column];
    return page < 0 ? 0 : page < page_count ? page : page_count - 1;
  }

  /// The sequence of batch entry b.
  GDPA_HOST_DEVICE int64_t sequence(int64_t b) const {
    if (map.data == nullptr) return b;
    const int64_t mapped = map[b];
    return mapped < 0 ? 0 : mapped < sequences ? mapped : sequences - 1;
  }
  /// The index of the first row of entry b in a jagged operand, otherwise 0.
  GDPA_HOST_DEVICE int64_t begin(int64_t b) const { return is_jagged() ? begins[sequence(b)] : 0; }
  /// The index of the row after the last row of entry b in a jagged operand, otherwise the length.
  GDPA_HOST_DEVICE int64_t end(int64_t b) const { return ends.data != nullptr ? ends[sequence(b)] : length; }
  /// The index of the first row of entry b among the rows of all sequences.
  GDPA_HOST_DEVICE int64_t first_row(int64_t b) const { return begin(b) + sequence(b) * token_stride; }
  GDPA_HOST_DEVICE int64_t size(int64_t b) const { return end(b) - begin(b); }
};

/// One operand. Strides count elements, and the stride of the last dimension is 1. batch_stride is the distance of two
/// sequences of a dense operand, or of two pages. It is 0 for a jagged operand, and for an operand that the whole batch
/// shares.
struct Operand {
  void* data = nullptr;  ///< inputs are only read
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;

  /// Returns the offset in elements from `data` to row `row` of sequence b and head h.
  GDPA_HOST_DEVICE int64_t offset(const Sequences& side, int64_t b, int64_t row, int64_t h) const {
    if (side.has_pages()) {
      return side.page_at(b, row / side.page_rows) * batch_stride + row % side.page_rows * row_stride + h * head_stride;
    }
    return side.sequence(b) * batch_stride + (side.begin(b) + row) * row_stride + h * head_stride;
  }
};

}  // namespace gdpa
