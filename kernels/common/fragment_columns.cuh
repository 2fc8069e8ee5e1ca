// FragmentColumns: the columns of a thread in an accumulator, as the bits of a word. A mask computes a whole row of
// valid scores with a few operations on such words, and the test of a score is the test of a constant bit, for which
// the GPU has an instruction that moves seven bits to predicates. The host includes this file too, to test it.
#pragma once

#include "common/fragment_ranges.cuh"

namespace gdpa {

/// 16 groups of 8 columns, of which a thread has two adjacent columns in each group. Bit n of a word is the column
/// origin + n / 2 * 8 + n % 2. Columns rise with the bits, so that a comparison of a column with a bound is a word
/// whose low, or high, bits are set.
struct FragmentColumns {
  static constexpr int groups = 16;
  static constexpr int extent = groups * 8;  ///< from the first column of a word to the first column of the next word

  int origin;

  /// The columns below `end`. Bounds may be any numbers.
  GDPA_HOST_DEVICE unsigned below(int end) const { return first(distance(end, origin)); }
  GDPA_HOST_DEVICE unsigned below(long long end) const { return below(narrow(end)); }

  /// The columns up to `last`, inclusive.
  GDPA_HOST_DEVICE unsigned up_to(int last) const { return first(distance(last, origin - 1)); }
  GDPA_HOST_DEVICE unsigned up_to(long long last) const { return up_to(narrow(last)); }

  /// The columns from `begin` on, and after `last`.
  template <class Bound>
  GDPA_HOST_DEVICE unsigned from(Bound begin) const {
    return ~below(begin);
  }
  template <class Bound>
  GDPA_HOST_DEVICE unsigned after(Bound last) const {
    return ~up_to(last);
  }

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
  GDPA_HOST_DEVICE static int narrow(long long bound) {
    constexpr long long most = 0x7fffffff;
    return static_cast<int>(bound > most ? most : bound < -most ? -most : bound);
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

/// The valid scores of a thread in 16 rows of an accumulator. The rows are queries (RowScores) or keys (ColumnScores).
template <class Mask, int groups>
using RowScores = typename FragmentOf<groups, Mask::keys_are_range>::Type;
template <class Mask, int groups>
using ColumnScores = typename FragmentOf<groups, Mask::queries_are_range>::Type;

}  // namespace gdpa
