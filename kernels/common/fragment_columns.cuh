// The valid scores of a thread in an accumulator, in two forms. FragmentRanges: each row has one range of valid
// columns, and the test of a score is a subtraction and a comparison. FragmentWords: the columns of a thread are the
// bits of a word. A mask computes a whole row of valid scores with a few operations on such words, and the test of a
// score is the test of a constant bit, for which the GPU has an instruction that moves seven bits to predicates. The
// host includes this file too, to test it.
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

/// A number with which columns are compared, in 32 bits. Larger numbers become the last one.
struct ColumnBound {
  static constexpr int most = 0x7fffffff;
  int column;

  GDPA_HOST_DEVICE ColumnBound(int bound) : column(bound) {}
  GDPA_HOST_DEVICE ColumnBound(long long bound)
      : column(static_cast<int>(bound > most    ? most
                                : bound < -most ? -most
                                                : bound)) {}
};

/// The columns for which a comparison with a bound is true, as one range. Conditions whose valid columns are one range
/// use this struct; other conditions use FragmentColumns, which has the same functions. A column is at least 0 and less
/// than `most`, so that -most and most stand for no bound.
struct AllColumns {
  static constexpr int most = ColumnBound::most;

  GDPA_HOST_DEVICE static ColumnRange below(ColumnBound end) { return {-most, end.column}; }
  GDPA_HOST_DEVICE static ColumnRange up_to(ColumnBound last) { return {-most, next(last)}; }
  GDPA_HOST_DEVICE static ColumnRange from(ColumnBound begin) { return {begin.column, most}; }
  GDPA_HOST_DEVICE static ColumnRange after(ColumnBound last) { return {next(last), most}; }
  GDPA_HOST_DEVICE static ColumnRange all_if(bool holds) { return {holds ? -most : most, most}; }

 private:
  GDPA_HOST_DEVICE static int next(ColumnBound bound) { return bound.column < most ? bound.column + 1 : most; }
};

/// 16 groups of 8 columns, of which a thread has two adjacent columns in each group. Bit n of a word is the column
/// origin + n / 2 * 8 + n % 2. Columns rise with the bits, so that a comparison of a column with a bound is a word
/// whose low, or high, bits are set.
struct FragmentColumns {
  static constexpr int groups = 16;
  static constexpr int extent = groups * 8;  ///< from the first column of a word to the first column of the next word

  int origin;

  /// The columns below `end`, up to and with `last`, from `begin` on, and after `last`. Bounds may be any numbers.
  GDPA_HOST_DEVICE unsigned below(ColumnBound end) const { return first(distance(end.column, origin)); }
  GDPA_HOST_DEVICE unsigned up_to(ColumnBound last) const { return first(distance(last.column, origin - 1)); }
  GDPA_HOST_DEVICE unsigned from(ColumnBound begin) const { return ~below(begin); }
  GDPA_HOST_DEVICE unsigned after(ColumnBound last) const { return ~up_to(last); }

  /// The columns of a range.
  GDPA_HOST_DEVICE unsigned in(const ColumnRange& range) const { return from(range.begin) & below(range.end); }

  /// All columns, or none.
  GDPA_HOST_DEVICE static unsigned all_if(bool holds) { return holds ? ~0u : 0u; }

  /// Calls visit(column, bit) for the columns of the first `count` groups, where `bit` is the word with this column. In
  /// a loop: all intermediate results of a row would occupy too many registers. The loads of `at_once` columns, a
  /// divisor of 2 * count, are in flight together.
  template <int count, int at_once, class Visit>
  GDPA_HOST_DEVICE void visit(Visit visit_column) const {
#ifdef __CUDACC__
#pragma unroll 1
#endif
    for (int first = 0; first < 2 * count; first += at_once) {
#ifdef __CUDACC__
#pragma unroll
#endif
      for (int at = 0; at < at_once; ++at)
        visit_column(origin + (first + at) / 2 * 8 + (first + at) % 2, 1u << (first + at));
    }
  }

 private:
  /// bound - from, at least 0 and at most `extent`.
  GDPA_HOST_DEVICE static int distance(int bound, int from) {
    const unsigned beyond = static_cast<unsigned>(bound < from ? from : bound) - static_cast<unsigned>(from);
    return beyond < static_cast<unsigned>(extent) ? static_cast<int>(beyond) : extent;
  }
  /// The columns whose distance from the origin is below `end`.
  GDPA_HOST_DEVICE static unsigned first(int end) {
    const int last = end - 1, in_group = (last & 7) + 1;
    const int bits = (last >> 3) * 2 + (in_group < 2 ? in_group : 2);
    return bits < 32 ? (1u << bits) - 1 : ~0u;
  }
};

/// The valid scores of a thread in 16 rows of an accumulator of `groups` groups of 8 columns: two rows, 8 apart, with
/// two columns in each group.
template <int groups>
struct FragmentWords {
  static constexpr int count = (groups + FragmentColumns::groups - 1) / FragmentColumns::groups;
  /// The number of groups in a word. The fragment reads no bits of other groups.
  static constexpr int groups_of_word = groups < FragmentColumns::groups ? groups : FragmentColumns::groups;

  unsigned words[2][count];  ///< of each row, a bit for each column

  /// Whether a score of row `half` is valid. Index 0 is the first column of the thread.
  GDPA_HOST_DEVICE bool holds(int half, int index) const {
    const int bit = index / 8 * 2 + index % 8;
    return (words[half][bit / 32] >> (bit % 32) & 1) != 0;
  }

  /// As FragmentRanges::after_missing_row.
  GDPA_HOST_DEVICE FragmentWords after_missing_row(bool second_exists) const {
    FragmentWords fragment{};
    for (int word = 0; word < count; ++word) fragment.words[1][word] = second_exists ? words[0][word] : 0;
    return fragment;
  }

  /// Calls valid(columns, pair) for the columns of each word, which sets the word of both rows. `origin` is the first
  /// column of the thread.
  template <class Valid>
  GDPA_HOST_DEVICE static FragmentWords of(int origin, Valid valid) {
    FragmentWords fragment{};
#ifdef __CUDACC__
#pragma unroll
#endif
    for (int word = 0; word < count; ++word) {
      unsigned pair[2] = {};
      valid(FragmentColumns{origin + word * FragmentColumns::extent}, pair);
      fragment.words[0][word] = pair[0];
      fragment.words[1][word] = pair[1];
    }
    return fragment;
  }

  /// As FragmentRanges::of.
  GDPA_HOST_DEVICE static FragmentWords of(int origin, const ColumnRange& low, const ColumnRange& high) {
    return of(origin, [&](const FragmentColumns& columns, unsigned(&pair)[2]) {
      pair[0] = columns.in(low);
      pair[1] = columns.in(high);
    });
  }
};

/// FragmentRanges if each row of a mask has one range of valid columns, otherwise FragmentWords.
template <int groups, bool is_range>
struct FragmentOf {
  using Type = FragmentWords<groups>;
};
template <int groups>
struct FragmentOf<groups, true> {
  using Type = FragmentRanges;
};

}  // namespace gdpa
