// Layout: the address of row i of sequence b and head h in each operand, and the length of each sequence. The header
// includes no standard library, because NVRTC compiles it too.
#pragma once

#include "gdpa/integers.h"

namespace gdpa {

/// GPU kernels count the rows of one sequence in 32 bits, and a tile may begin after the last row.
constexpr int64_t most_gpu_rows = 0x7fff0000;

/// The queries, or the keys, of every batch entry: cumulative lengths if they are jagged, otherwise one length for all.
struct Sequences {
  const void* cumulative = nullptr;  ///< batch + 1 numbers, or null: every sequence has `length` rows
  bool cumulative_is_int64 = false;
  int64_t length = 0;
  int64_t token_stride = 0;  ///< rows from one sequence to the next if they are dense; 0 if they are shared or jagged

  /// The index of the first row of sequence b in a jagged operand, otherwise 0.
  GDPA_HOST_DEVICE int64_t begin(int64_t b) const { return cumulative == nullptr ? 0 : at(b); }
  /// The index of the first row of sequence b among the rows of all sequences.
  GDPA_HOST_DEVICE int64_t first_token(int64_t b) const { return begin(b) + b * token_stride; }
  GDPA_HOST_DEVICE int64_t size(int64_t b) const { return cumulative == nullptr ? length : at(b + 1) - at(b); }

 private:
  GDPA_HOST_DEVICE int64_t at(int64_t b) const {
    return cumulative_is_int64 ? static_cast<const int64_t*>(cumulative)[b]
                               : static_cast<int64_t>(static_cast<const int32_t*>(cumulative)[b]);
  }
};

/// One operand. Strides count elements, and the stride of the last dimension is 1. batch_stride is 0 for a jagged
/// operand, whose sequences are consecutive rows, and for an operand that the whole batch shares.
struct Operand {
  void* data = nullptr;  ///< inputs are only read
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;

  /// Returns the offset in elements from `data` to row `row` of sequence b and head h.
  GDPA_HOST_DEVICE int64_t offset(const Sequences& side, int64_t b, int64_t row, int64_t h) const {
    return b * batch_stride + (side.begin(b) + row) * row_stride + h * head_stride;
  }
};

}  // namespace gdpa
