// The inputs of the scores that one thread has in an accumulator of mma or WGMMA. Scores that share a query, a key or a
// difference of their positions share the inputs that depend only on it, so that a thread loads each of them once.
#pragma once

#include "common/lane_lookups.cuh"
#include "common/no_inputs.cuh"
#include "common/staged_lookups.cuh"
#include "common/staged_tile.cuh"

namespace gdpa {

/// The positions of the rows of an accumulator: queries in forward, keys in backward, which has S^T.
enum class FragmentRows { queries, keys };

/// The types of the inputs of a row and of a column.
template <class Inputs, FragmentRows rows>
struct FragmentSides {
  using OfRow = typename Inputs::OfQuery;
  using OfColumn = typename Inputs::OfKey;
};
template <class Inputs>
struct FragmentSides<Inputs, FragmentRows::keys> {
  using OfRow = typename Inputs::OfKey;
  using OfColumn = typename Inputs::OfQuery;
};

/// The lookups of an accumulator.
template <class Inputs, FragmentRows rows, int staged_columns, bool exist>
struct FragmentLookups {
  using Type = StagedLookups<Inputs, staged_columns, exist>;
};
template <class Inputs, bool exist>
struct FragmentLookups<Inputs, FragmentRows::keys, 0, exist> {
  using Type = LaneLookups<Inputs, exist>;
};

/// The memory of a warp for the inputs of its accumulator, whose 16 rows are queries. The rows share the inputs of all
/// columns, and the inputs of all differences: each lane computes a few of them for all lanes. Unless
/// `bias_tile` is none, each score has an element of a dense bias. With `has_lookups`, scores read elements of lookups.
template <class Inputs, int columns, BiasTile bias_tile, bool has_lookups>
struct StagedInputs {
  using Tile = StagedTile<Inputs, columns, bias_tile>;
  using Lookups = StagedLookups<Inputs, columns, has_lookups>;
  using Key = typename Inputs::OfKey;
  using Difference = typename Inputs::OfDifference;
  static constexpr int rows = 16;
  static constexpr int keys = Inputs::reads_keys ? columns : 0;
  static constexpr int differences = Inputs::reads_differences ? columns + rows - 1 : 0;
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
  __device__ __forceinline__ void begin_rows(const Inputs& inputs, int query) const {
    if constexpr (has_lookups) lookups().fill(inputs, query);
  }

  /// Computes the inputs of a tile, and finds the LookupForm of the tile. `query` and `key` are the first query and the
  /// first key of the tile. All lanes of the warp call this function.
  __device__ __forceinline__ void fill(const Inputs& inputs, int query, int key, Lookups& lookups) const {
    if constexpr (bytes == Tile::bytes) return;
    const auto lane = static_cast<int>(threadIdx.x % 32);
    __syncwarp();  // the lanes have read the inputs of the preceding tile
#pragma unroll
    for (int i = 0; i < (differences + 31) / 32; ++i) {
      const int number = i * 32 + lane;
      if (number < differences) of_differences()[number] = inputs.of_difference(query + rows - 1, key + number);
    }
    Key of_lane[(keys + 31) / 32 + 1];  // not empty
#pragma unroll
    for (int i = 0; i < (keys + 31) / 32; ++i) {
      const int number = i * 32 + lane;
      of_lane[i] = inputs.of_key(key + min(number, keys - 1));
      if (number < keys) of_keys()[number] = of_lane[i];
    }
    if constexpr (has_lookups) lookups.enter_tile(inputs, of_lane);
    __syncwarp();
  }
};

/// The inputs of 16 rows of an accumulator. A thread has the rows `row` and `row + 8`, and the columns `column` and
/// `column + 1` of each group of 8 columns. The scores of a group are numbered as in the accumulator: 0 and 1 in the
/// first row, 2 and 3 in the second row.
///
///     FragmentInputs<Inputs, FragmentRows::queries> fragment(inputs, query, key);
///     for (int group = 0; group < columns / 8; ++group) {
///       fragment.enter(group);
///       for (int i = 0; i < 4; ++i) ... fragment.at(i) ...
///     }
///
/// A warp with memory for StagedInputs of `staged_columns` columns passes it to the constructor. It has begun the copy
/// of the tile there, if there is one. With `has_rows_below_0`, the first rows may have positions below 0, where no
/// query or key is. They have the inputs of position 0, because a function may rely on positions of 0 or more. With
/// `has_lookups`, the lookups are staged if the rows are queries, and in registers if the rows are keys.
template <class Inputs, FragmentRows rows, int staged_columns = 0, BiasTile bias_tile = BiasTile::none,
          bool has_lookups = false, bool has_rows_below_0 = false>
class FragmentInputs {
 public:
  using Staged = StagedInputs<Inputs, staged_columns, bias_tile, has_lookups>;
  using Lookups = typename FragmentLookups<Inputs, rows, staged_columns, has_lookups>::Type;
  static_assert(staged_columns == 0 || rows == FragmentRows::queries, "the rows of StagedInputs are queries");
  static constexpr bool has_forms = has_lookups;

  FragmentInputs() = default;

  /// Loads the inputs of the two rows, and of the tile. By all lanes of the warp.
  __device__ __forceinline__ FragmentInputs(const Inputs& inputs, int row, int column, const Staged& staged)
      : FragmentInputs(inputs, row, column) {
    const auto lane = static_cast<int>(threadIdx.x % 32);
    const int row_of_lane = lane / 4, column_of_lane = lane % 4 * 2;
    lookups_ = staged.lookups();
    staged.fill(inputs, row - row_of_lane, column - column_of_lane, lookups_);
    tile_ = staged.tile();
    tile_.finish_copy(inputs, row - row_of_lane, column - column_of_lane);
    differences_ = staged.of_differences() + (Staged::rows - 1 - row_of_lane + column_of_lane);
    keys_ = staged.of_keys() + column_of_lane;
  }

  /// Loads the inputs of the two rows. By all lanes of the warp.
  __device__ __forceinline__ FragmentInputs(const Inputs& inputs, int row, int column)
      : inputs_(inputs), row_(row), column_(column) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (rows == FragmentRows::queries) {
        of_row_[half] = inputs_.of_query(row_of(half));
      } else {
        of_row_[half] = inputs_.of_key(row_of(half));
      }
    }
    if constexpr (has_lookups && staged_columns == 0)
      lookups_ = Lookups(inputs_, of_row_, column - lane_index() % 4 * 2);
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
        of_column_[i] = inputs_.of_key(column_of(i));
      } else {
        of_column_[i] = inputs_.of_query(column_of(i));
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
  __device__ __forceinline__ void leave(int group) const { inputs_.end_group(group); }

  /// The inputs of score i of the group.
  __device__ __forceinline__ typename Inputs::Values at(int i) const {
    const int row = row_of(i / 2), column = column_of(i % 2);
    if constexpr (has_tile) {
      return inputs_.at(row, column, of_row_[i / 2], of_column_[i % 2], of_difference_[i], tile_.element(group_, i));
    } else if constexpr (rows == FragmentRows::queries) {
      return inputs_.at(row, column, of_row_[i / 2], of_column_[i % 2], of_difference_[i]);
    } else {
      return inputs_.at(column, row, of_column_[i % 2], of_row_[i / 2], of_difference_[i]);
    }
  }

  /// The entry of score i of the group in a lookup. The index of the lookup depends on a difference, and the rows are
  /// keys.
  __device__ __forceinline__ int entry(int lookup, int i) const {
    const auto apart =
        LookupDifferences<Inputs>::of(Inputs::number_of(of_column_[i % 2]), Inputs::number_of(of_row_[i / 2]));
    return inputs_.lookup_entry(lookup, apart);
  }

 private:
  template <LookupForm form>
  struct OfForm {
    FragmentInputs& fragment;

    __device__ __forceinline__ void enter(int group) {
      fragment.enter(group);
      fragment.lookups_.template enter<form>(group);
    }
    __device__ __forceinline__ void leave(int group) const { fragment.leave(group); }
    __device__ __forceinline__ typename Inputs::Values at(int i) const {
      const int row = fragment.row_of(i / 2), column = fragment.column_of(i % 2), score = fragment.group_ * 4 + i;
      const auto& of_row = fragment.of_row_[i / 2];
      const auto& of_column = fragment.of_column_[i % 2];
      const auto& of_difference = fragment.of_difference_[i];
      if constexpr (rows == FragmentRows::queries) {
        return fragment.lookups_.template at<form>(fragment.inputs_, row, column, score, of_row, of_column,
                                                   of_difference);
      } else {
        return fragment.lookups_.template at<form>(fragment.inputs_, column, row, score, of_column, of_row,
                                                   of_difference);
      }
    }

    /// The entry of score i of the group in a lookup, if the rows are keys.
    __device__ __forceinline__ int entry(int lookup, int i) const {
      return fragment.lookups_.template entry<form>(fragment.inputs_, lookup, i, fragment.of_column_[i % 2],
                                                    fragment.of_row_[i / 2]);
    }
  };

  template <LookupForm form, class Visit>
  __device__ __forceinline__ void visit_form(Visit& visit) {
    OfForm<form> of_form{*this};
    if constexpr (staged_columns > 0) lookups_.template begin<form>();
    visit(of_form);
  }

  using Sides = FragmentSides<Inputs, rows>;
  static constexpr bool has_tile = bias_tile != BiasTile::none;
  static constexpr bool has_staged_keys = staged_columns > 0 && Inputs::reads_keys;
  static constexpr bool has_staged_differences = staged_columns > 0 && Inputs::reads_differences;

  __device__ __forceinline__ int row_of(int half) const {
    const int row = row_ + half * 8;
    return has_rows_below_0 ? max(row, 0) : row;
  }
  __device__ __forceinline__ int column_of(int i) const { return column_ + group_ * 8 + i; }
  __device__ __forceinline__ typename Inputs::OfDifference difference(int i) const {
    const int row = row_of(i / 2), column = column_of(i % 2);
    return rows == FragmentRows::queries ? inputs_.of_difference(row, column) : inputs_.of_difference(column, row);
  }

  Inputs inputs_;
  int row_;
  int column_;
  int group_;
  const typename Inputs::OfKey* keys_;                // of this thread's first column
  const typename Inputs::OfDifference* differences_;  // of this thread's first score
  typename Sides::OfRow of_row_[2];
  typename Sides::OfColumn of_column_[2];
  typename Inputs::OfDifference of_difference_[4];
  typename Staged::Tile tile_;
  Lookups lookups_;
};

}  // namespace gdpa
