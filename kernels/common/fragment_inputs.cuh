// The inputs of the scores that one thread has in an accumulator of mma or WGMMA. Scores that share a query, a key or a
// difference of their positions share the inputs that depend only on it, so that a thread loads each of them once.
#pragma once

#include "common/lane_lookups.cuh"
#include "common/no_bias.cuh"
#include "common/staged_lookups.cuh"
#include "common/staged_tile.cuh"

namespace gdpa {

/// The positions of the rows of an accumulator: queries in forward, keys in backward, which has S^T.
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

/// The lookups of an accumulator.
template <class Bias, FragmentRows rows, int staged_columns, bool exist>
struct FragmentLookups {
  using Type = StagedLookups<Bias, staged_columns, exist>;
};
template <class Bias, bool exist>
struct FragmentLookups<Bias, FragmentRows::keys, 0, exist> {
  using Type = LaneLookups<Bias, exist>;
};

/// The memory of a warp for the inputs of its accumulator, whose 16 rows are queries. The rows share the inputs of all
/// columns, and the inputs of all differences: each lane computes a few of them for all lanes. Unless
/// `bias_tile` is none, each score has an element of a dense bias. With `has_lookups`, scores read elements of lookups.
template <class Bias, int columns, BiasTile bias_tile, bool has_lookups>
struct StagedInputs {
  using Tile = StagedTile<Bias, columns, bias_tile>;
  using Lookups = StagedLookups<Bias, columns, has_lookups>;
  using Key = typename Bias::OfKey;
  using Difference = typename Bias::OfDifference;
  static constexpr int rows = 16;
  static constexpr int keys = Bias::reads_keys ? columns : 0;
  static constexpr int differences = Bias::reads_differences ? columns + rows - 1 : 0;
  static constexpr int alignment = bias_tile == BiasTile::aligned ? 128 : 16;
  static constexpr int keys_at = Tile::bytes + (differences * static_cast<int>(sizeof(Difference)) + 15) / 16 * 16;
  static constexpr int lookups_at = keys_at + (keys * static_cast<int>(sizeof(Key)) + 15) / 16 * 16;
  static constexpr int bytes = (lookups_at + Lookups::bytes + alignment - 1) / alignment * alignment;

  unsigned char* memory;

  __device__ __forceinline__ Tile tile() const { return Tile(shared_address(memory)); }
  __device__ __forceinline__ Lookups lookups() const { return Lookups(memory + lookups_at); }
  __device__ __forceinline__ Difference* of_differences() const {
    return reinterpret_cast<Difference*>(memory + Tile::bytes);
  }
  __device__ __forceinline__ Key* of_keys() const { return reinterpret_cast<Key*>(memory + keys_at); }

  /// Copies the elements of lookups for the 16 queries from `query` on, before the first tile of these queries. All
  /// lanes of the warp call this function.
  __device__ __forceinline__ void begin_rows(const Bias& bias, int query) const {
    if constexpr (has_lookups) lookups().fill(bias, query);
  }

  /// Computes the inputs of a tile, and finds the LookupForm of the tile. `query` and `key` are the first query and the
  /// first key of the tile. All lanes of the warp call this function.
  __device__ __forceinline__ void fill(const Bias& bias, int query, int key, Lookups& lookups) const {
    if constexpr (bytes == Tile::bytes) return;
    const auto lane = static_cast<int>(threadIdx.x % 32);
    __syncwarp();  // the lanes have read the inputs of the preceding tile
#pragma unroll
    for (int i = 0; i < (differences + 31) / 32; ++i) {
      const int number = i * 32 + lane;
      if (number < differences) of_differences()[number] = bias.of_difference(query + rows - 1, key + number);
    }
    Key of_lane[(keys + 31) / 32 + 1];  // not empty
#pragma unroll
    for (int i = 0; i < (keys + 31) / 32; ++i) {
      const int number = i * 32 + lane;
      of_lane[i] = bias.of_key(key + min(number, keys - 1));
      if (number < keys) of_keys()[number] = of_lane[i];
    }
    if constexpr (has_lookups) lookups.enter_tile(bias, of_lane);
    __syncwarp();
  }
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
///
/// A warp with memory for StagedInputs of `staged_columns` columns passes it to the constructor. It has begun the copy
/// of the tile there, if there is one. With `has_rows_below_0`, the first rows may have positions below 0, where no
/// query or key is. They have the inputs of position 0, because a function may rely on positions of 0 or more. With
/// `has_lookups`, the lookups are staged if the rows are queries, and in registers if the rows are keys.
template <class Bias, FragmentRows rows, int staged_columns = 0, BiasTile bias_tile = BiasTile::none,
          bool has_lookups = false, bool has_rows_below_0 = false>
class FragmentInputs {
 public:
  using Staged = StagedInputs<Bias, staged_columns, bias_tile, has_lookups>;
  using Lookups = typename FragmentLookups<Bias, rows, staged_columns, has_lookups>::Type;
  static_assert(staged_columns == 0 || rows == FragmentRows::queries, "the rows of StagedInputs are queries");
  static constexpr bool has_forms = has_lookups;

  FragmentInputs() = default;

  /// Loads the inputs of the two rows, and of the tile. By all lanes of the warp.
  __device__ __forceinline__ FragmentInputs(const Bias& bias, int row, int column, const Staged& staged)
      : FragmentInputs(bias, row, column) {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    const int row_of_lane = lane / 4, column_of_lane = lane % 4 * 2;
    lookups_ = staged.lookups();
    staged.fill(bias, row - row_of_lane, column - column_of_lane, lookups_);
    tile_ = staged.tile();
    tile_.finish_copy(bias, row - row_of_lane, column - column_of_lane);
    differences_ = staged.of_differences() + (Staged::rows - 1 - row_of_lane + column_of_lane);
    keys_ = staged.of_keys() + column_of_lane;
  }

  /// Loads the inputs of the two rows. By all lanes of the warp.
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
    if constexpr (has_lookups && staged_columns == 0) lookups_ = Lookups(bias_, of_row_, column - lane_index() % 4 * 2);
  }

  /// Calls visit(inputs) with inputs that read the lookups by the LookupForm of the tile. The branch is uniform.
  template <class Visit>
  __device__ __forceinline__ void visit(Visit visit) {
    if constexpr (!has_lookups) {
      visit(*this);
    } else {
      if (lookups_.form() == LookupForm::one) {
        visit_form<LookupForm::one>(visit);
      } else if (lookups_.form() == LookupForm::close) {
        visit_form<LookupForm::close>(visit);
      } else {
        visit_form<LookupForm::any>(visit);
      }
    }
  }

  /// Calls visit(inputs) with inputs that compute the entries of scores. For rows that are keys.
  template <class Visit>
  __device__ __forceinline__ void visit_entries(Visit visit) {
    if constexpr (!has_lookups) {
      visit(*this);
    } else if (lookups_.form() == LookupForm::close) {
      visit_form<LookupForm::close>(visit);
    } else {
      visit_form<LookupForm::any>(visit);
    }
  }

  __device__ __forceinline__ const Lookups& lookups() const { return lookups_; }

  /// Moves to a group of columns: to group 0 first, and then always to the next group.
  __device__ __forceinline__ void enter(int group) {
    group_ = group;
    if constexpr (has_tile) {
      if (group % Staged::Tile::groups_of_a_load == 0) tile_.load(group);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (has_staged_keys) {
        of_column_[i] = keys_[group * 8 + i];
      } else if constexpr (rows == FragmentRows::queries) {
        of_column_[i] = bias_.of_key(column_of(i));
      } else {
        of_column_[i] = bias_.of_query(column_of(i));
      }
      if constexpr (has_staged_differences) {
        of_difference_[i] = differences_[group * 8 + i];
        of_difference_[2 + i] = differences_[group * 8 + i - 8];
        continue;
      }
      // The second row has the same difference as the first row has in the previous group, unless the first row has the
      // inputs of position 0.
      of_difference_[2 + i] = group == 0 || has_rows_below_0 ? difference(2 + i) : of_difference_[i];
      of_difference_[i] = difference(i);
    }
  }

  /// Called after the scores of a group of columns.
  __device__ __forceinline__ void leave(int group) const { bias_.end_group(group); }

  /// The inputs of score i of the group.
  __device__ __forceinline__ typename Bias::Inputs at(int i) const {
    const int row = row_of(i / 2), column = column_of(i % 2);
    if constexpr (has_tile) {
      return bias_.at(row, column, of_row_[i / 2], of_column_[i % 2], of_difference_[i],
                      tile_.element(group_, i));
    } else if constexpr (rows == FragmentRows::queries) {
      return bias_.at(row, column, of_row_[i / 2], of_column_[i % 2], of_difference_[i]);
    } else {
      return bias_.at(column, row, of_column_[i % 2], of_row_[i / 2], of_difference_[i]);
    }
  }

  /// The entry of score i of the group in a lookup. The index of the lookup depends on a difference, and the rows are
  /// keys.
  __device__ __forceinline__ int entry(int lookup, int i) const {
    const auto apart =
        LookupDifferences<Bias>::of(Bias::number_of(of_column_[i % 2]), Bias::number_of(of_row_[i / 2]));
    return bias_.lookup_entry(lookup, apart);
  }

 private:
  template <LookupForm form>
  struct OfForm {
    FragmentInputs& inputs;

    __device__ __forceinline__ void enter(int group) {
      inputs.enter(group);
      inputs.lookups_.template enter<form>(group);
    }
    __device__ __forceinline__ void leave(int group) const { inputs.leave(group); }
    __device__ __forceinline__ typename Bias::Inputs at(int i) const {
      const int row = inputs.row_of(i / 2), column = inputs.column_of(i % 2), score = inputs.group_ * 4 + i;
      const auto& of_row = inputs.of_row_[i / 2];
      const auto& of_column = inputs.of_column_[i % 2];
      const auto& of_difference = inputs.of_difference_[i];
      if constexpr (rows == FragmentRows::queries) {
        return inputs.lookups_.template at<form>(inputs.bias_, row, column, score, of_row, of_column, of_difference);
      } else {
        return inputs.lookups_.template at<form>(inputs.bias_, column, row, score, of_column, of_row, of_difference);
      }
    }

    /// The entry of score i of the group in a lookup, if the rows are keys.
    __device__ __forceinline__ int entry(int lookup, int i) const {
      return inputs.lookups_.template entry<form>(inputs.bias_, lookup, i, inputs.of_column_[i % 2],
                                                  inputs.of_row_[i / 2]);
    }
  };

  template <LookupForm form, class Visit>
  __device__ __forceinline__ void visit_form(Visit& visit) {
    OfForm<form> of_form{*this};
    if constexpr (staged_columns > 0) lookups_.template begin<form>();
    visit(of_form);
  }

  using Sides = FragmentSides<Bias, rows>;
  static constexpr bool has_tile = bias_tile != BiasTile::none;
  static constexpr bool has_staged_keys = staged_columns > 0 && Bias::reads_keys;
  static constexpr bool has_staged_differences = staged_columns > 0 && Bias::reads_differences;

  __device__ __forceinline__ int row_of(int half) const {
    const int row = row_ + half * 8;
    return has_rows_below_0 ? max(row, 0) : row;
  }
  __device__ __forceinline__ int column_of(int i) const { return column_ + group_ * 8 + i; }
  __device__ __forceinline__ typename Bias::OfDifference difference(int i) const {
    const int row = row_of(i / 2), column = column_of(i % 2);
    return rows == FragmentRows::queries ? bias_.of_difference(row, column) : bias_.of_difference(column, row);
  }

  Bias bias_;
  int row_;
  int column_;
  int group_;
  const typename Bias::OfKey* keys_;                // of this thread's first column
  const typename Bias::OfDifference* differences_;  // of this thread's first score
  typename Sides::OfRow of_row_[2];
  typename Sides::OfColumn of_column_[2];
  typename Bias::OfDifference of_difference_[4];
  typename Staged::Tile tile_;
  Lookups lookups_;
};

}  // namespace gdpa
