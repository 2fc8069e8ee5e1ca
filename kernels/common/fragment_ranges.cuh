// FragmentRanges: the valid scores of a thread in an accumulator, where each row has one range of valid columns. The
// test of a score is a subtraction and a comparison. The host includes this file too, to test it.
#pragma once

#include "gdpa/integers.h"

namespace gdpa {

/// A half-open range of keys or queries. 32-bit numbers make the test of each score cheap.
struct ValidRange {
  int begin;
  int count;

  GDPA_HOST_DEVICE bool holds(int index) const {
    return static_cast<unsigned>(index - begin) < static_cast<unsigned>(count);
  }
};

/// The columns from `begin` up to, not including, `end`; none if end <= begin.
struct ColumnRange {
  int begin;
  int end;

  /// The columns of a row, which has `length` columns if it exists.
  GDPA_HOST_DEVICE static ColumnRange of_row(int row, int rows, int length) { return {0, row < rows ? length : 0}; }

  GDPA_HOST_DEVICE ColumnRange operator&(const ColumnRange& other) const {
    return {begin > other.begin ? begin : other.begin, end < other.end ? end : other.end};
  }
  GDPA_HOST_DEVICE bool holds(int column) const { return column >= begin && column < end; }
  GDPA_HOST_DEVICE ValidRange counted_from(int origin) const { return {begin - origin, end > begin ? end - begin : 0}; }
};

/// The valid scores of a thread in 16 rows of an accumulator: two rows, 8 apart.
struct FragmentRanges {
  ValidRange rows[2];  ///< counted from the first column of the thread

  /// The scores of two rows in a fragment. `origin` is the first column of the fragment.
  GDPA_HOST_DEVICE static FragmentRanges of(int origin, const ColumnRange& low, const ColumnRange& high) {
    return {{low.counted_from(origin), high.counted_from(origin)}};
  }

  /// Whether a score of row `half` is valid. Index 0 is the first column of the thread.
  GDPA_HOST_DEVICE bool holds(int half, int index) const { return rows[half].holds(index); }

  /// The valid scores of the rows that are 8 before these rows, where the first row does not exist. The second row may
  /// not exist either.
  GDPA_HOST_DEVICE FragmentRanges after_missing_row(bool second_exists) const {
    return {{{0, 0}, second_exists ? rows[0] : ValidRange{0, 0}}};
  }
};

/// Columns that a comparison with a bound selects, as FragmentColumns of common/fragment_columns.cuh, for conditions
/// whose valid columns are one range. A column is at least 0, and below the ends of int. Bounds may be any numbers.
struct AllColumns {
  static constexpr int most = 0x7fffffff;

  GDPA_HOST_DEVICE static ColumnRange below(int end) { return {-most, end}; }
  GDPA_HOST_DEVICE static ColumnRange below(long long end) { return below(narrow(end)); }
  GDPA_HOST_DEVICE static ColumnRange up_to(int last) { return {-most, next(last)}; }
  GDPA_HOST_DEVICE static ColumnRange up_to(long long last) { return up_to(narrow(last)); }
  GDPA_HOST_DEVICE static ColumnRange from(int begin) { return {begin, most}; }
  GDPA_HOST_DEVICE static ColumnRange from(long long begin) { return from(narrow(begin)); }
  GDPA_HOST_DEVICE static ColumnRange after(int last) { return {next(last), most}; }
  GDPA_HOST_DEVICE static ColumnRange after(long long last) { return after(narrow(last)); }
  GDPA_HOST_DEVICE static ColumnRange all_if(bool holds) { return {holds ? -most : most, most}; }

 private:
  GDPA_HOST_DEVICE static int next(int column) { return column < most ? column + 1 : most; }
  GDPA_HOST_DEVICE static int narrow(long long bound) {
    return static_cast<int>(bound > most ? most : bound < -most ? -most : bound);
  }
};

}  // namespace gdpa
