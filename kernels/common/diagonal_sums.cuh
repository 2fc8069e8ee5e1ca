// The sums of the diagonals of 16 rows and 64 columns, in the registers of a warp with the accumulators of a tensor
// core product: lane 4 r + c has rows r and r + 8 at columns 8 n + 2 c and the next one, for n from 0 to 7. No shared
// memory is needed. The host includes this file too, to test it.
#pragma once

#include "common/lanes.cuh"

namespace gdpa {

/// The sums of 79 diagonals: three of each lane.
///
/// Rows r and r + 8 have the same diagonals eight columns apart, so that a lane adds up their terms. Eight rows remain,
/// whose diagonals begin one column apart. Three exchanges halve the rows: in exchange k, rows whose numbers differ in
/// bit k are added up, 2^k columns apart. Each lane sends half of its sums to a lane of the other row, and receives the
/// same number. A lane of the other row may have to send sums of the next group of columns, as columns 6 and 7 have
/// their partners there.
struct DiagonalSums {
  static constexpr int count = 3;               ///< sums of a lane
  static constexpr int first = -15, last = 63;  ///< column - row of the diagonals

  float sums[count];

  /// Adds up the terms of a warp. terms[4 n + 2 half + i] is at row r + 8 half and column 8 n + 2 c + i.
  __device__ __forceinline__ explicit DiagonalSums(const float (&terms)[32]) {
    const Lane lane;
    // Group m has columns from 8 (m - 6) on, counted from the first column of the upper row. Groups without a term are
    // 0, and the compiler leaves them out.
    float even[15] = {}, odd[15] = {};
#pragma unroll
    for (int n = -1; n < 8; ++n) {
      even[n + 6] = (n >= 0 ? terms[max(n, 0) * 4] : 0.0f) + (n < 7 ? terms[min(n + 1, 7) * 4 + 2] : 0.0f);
      odd[n + 6] = (n >= 0 ? terms[max(n, 0) * 4 + 1] : 0.0f) + (n < 7 ? terms[min(n + 1, 7) * 4 + 3] : 0.0f);
    }
    float by_two[17] = {};
#pragma unroll
    for (int m = 5; m < 15; ++m) {
      by_two[m] = even[m] + exchanged(lane.sends_previous() ? odd[m - 1] : odd[m], lane.partner_of_one());
    }
    float by_four[10] = {};
#pragma unroll
    for (int h = 2; h < 8; ++h) {
      const float own = lane.is_lower(1) ? by_two[2 * h] : lane.column == 0 ? by_two[2 * h + 2] : by_two[2 * h + 1];
      const float sent = lane.is_lower(1) || lane.column == 0 ? by_two[2 * h + 1] : by_two[2 * h];
      by_four[h] = own + exchanged(sent, lane.partner_of_two());
    }
    const bool crosses = lane.place() < 2;
#pragma unroll
    for (int j = 1; j <= count; ++j) {
      const float own = lane.is_lower(2) ? by_four[2 * j] : crosses ? by_four[2 * j + 2] : by_four[2 * j + 1];
      const float sent = lane.is_lower(2) || crosses ? by_four[2 * j + 1] : by_four[2 * j];
      sums[j - 1] = own + exchanged(sent, lane.partner_of_four());
    }
  }

  /// The diagonal of sum i of this lane, column - row. It may be outside of [first, last]; the sum is then 0.
  __device__ __forceinline__ static int diagonal_of(int i) { return i * 32 + Lane().first_diagonal(); }

 private:
  /// The place of this lane in the exchanges.
  struct Lane {
    int row = lane_index() / 4, column = lane_index() % 4;

    /// Whether the bit of the row is 0.
    __device__ __forceinline__ bool is_lower(int bit) const { return (row >> bit & 1) == 0; }

    /// Exchange 0. A lane of an even row has the sums of its even columns, with the odd columns of the next row. A lane
    /// of an odd row has its even columns too, with the odd columns before them.
    __device__ __forceinline__ bool sends_previous() const { return is_lower(0) && column == 3; }
    __device__ __forceinline__ int partner_of_one() const {
      return is_lower(0) ? lane_index() + 4 : column > 0 ? lane_index() - 5 : lane_index() - 1;
    }

    /// Exchange 1. A lane of a lower row has the even groups, and its partner the odd groups.
    __device__ __forceinline__ int partner_of_two() const {
      return is_lower(1) ? (row + 2) * 4 + (column + 1) % 4 : (row - 2) * 4 + (column + 3) % 4;
    }

    /// The place of its diagonals among the diagonals of 16 columns after exchange 1, in units of two columns.
    __device__ __forceinline__ int place() const { return is_lower(1) ? column : 4 + (column + 3) % 4; }

    /// Exchange 2, four columns apart, which are two places.
    __device__ __forceinline__ int partner_of_four() const {
      const int other = (is_lower(2) ? place() + 2 : place() + 6) % 8;
      const int other_row = row % 2 + (other >= 4 ? 2 : 0) + (is_lower(2) ? 4 : 0);
      return other_row * 4 + (other >= 4 ? (other + 1) % 4 : other);
    }

    /// The diagonal of sum 0.
    __device__ __forceinline__ int first_diagonal() const {
      const int after = is_lower(2) ? place() : 8 + (place() + 6) % 8;
      return 2 * after - row % 2 - 16;
    }
  };

  __device__ __forceinline__ static float exchanged(float sent, int partner) {
    return __shfl_sync(0xffffffffu, sent, partner);
  }
};

}  // namespace gdpa
