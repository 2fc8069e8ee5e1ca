// The inputs of the scores that one thread has in an accumulator of mma or WGMMA. Scores that share a query, a key or a
// difference of their positions share the inputs that depend only on it, so that a thread loads each of them once.
#pragma once

#include "common/no_bias.cuh"

namespace gdpa {

/// Which positions the rows of an accumulator are: the queries in forward, the keys in backward, which has S^T.
enum class FragmentRows { queries, keys };

/// The types of the inputs of a row and of a column.
template <class Bias, FragmentRows rows>
struct FragmentSides {
  using OfRow = typename Bias::OfQuery;
  using OfColumn = typename Bias::OfKey;
};
template <class Bias>
struct FragmentSides<Bias, FragmentRows::keys> {
  using OfRow = typename Bias::OfKey;
  using OfColumn = typename Bias::OfQuery;
};

/// The inputs of 16 rows of an accumulator. A thread has the rows `row` and `row + 8`, and the columns `column` and
/// `column + 1` of each group of 8 columns. The scores of a group are numbered as in the accumulator: 0 and 1 in the
/// first row, 2 and 3 in the second row.
///
///     FragmentInputs<Bias, FragmentRows::queries> inputs(bias, query, key);
///     for (int group = 0; group < columns / 8; ++group) {
///       inputs.enter(group);
///       for (int i = 0; i < 4; ++i) ... inputs.at(i) ...
///     }
template <class Bias, FragmentRows rows>
class FragmentInputs {
 public:
  FragmentInputs() = default;

  /// Loads the inputs of the two rows.
  __device__ __forceinline__ FragmentInputs(const Bias& bias, int row, int column)
      : bias_(bias), row_(row), column_(column) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (rows == FragmentRows::queries) {
        of_row_[half] = bias_.of_query(row_of(half));
      } else {
        of_row_[half] = bias_.of_key(row_of(half));
      }
    }
  }

  /// Moves to a group of columns: to group 0 first, and then always to the next group.
  __device__ __forceinline__ void enter(int group) {
    group_ = group;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (rows == FragmentRows::queries) {
        of_column_[i] = bias_.of_key(column_of(i));
      } else {
        of_column_[i] = bias_.of_query(column_of(i));
      }
      // The second row has the same difference as the first row has in the previous group.
      of_difference_[2 + i] = group == 0 ? difference(2 + i) : of_difference_[i];
      of_difference_[i] = difference(i);
    }
  }

  /// The inputs of score i of the group.
  __device__ __forceinline__ typename Bias::Inputs at(int i) const {
    const int row = row_of(i / 2), column = column_of(i % 2);
    if constexpr (rows == FragmentRows::queries) {
      return bias_.at(row, column, of_row_[i / 2], of_column_[i % 2], of_difference_[i]);
    } else {
      return bias_.at(column, row, of_column_[i % 2], of_row_[i / 2], of_difference_[i]);
    }
  }

 private:
  using Sides = FragmentSides<Bias, rows>;

  __device__ __forceinline__ int row_of(int half) const { return row_ + half * 8; }
  __device__ __forceinline__ int column_of(int i) const { return column_ + group_ * 8 + i; }
  __device__ __forceinline__ typename Bias::OfDifference difference(int i) const {
    const int row = row_of(i / 2), column = column_of(i % 2);
    return rows == FragmentRows::queries ? bias_.of_difference(row, column) : bias_.of_difference(column, row);
  }

  Bias bias_;
  int row_;
  int column_;
  int group_;
  typename Sides::OfRow of_row_[2];
  typename Sides::OfColumn of_column_[2];
  typename Bias::OfDifference of_difference_[4];
};

}  // namespace gdpa
