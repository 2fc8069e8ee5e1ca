// f at the scores of a warp, in the accumulators of one tile.
#pragma once

#include "common/fragment_columns.cuh"
#include "common/fragment_inputs.cuh"
#include "common/tile.cuh"

namespace gdpa::portable {

/// The inputs of f at the scores of a warp, and in a partial tile the valid scores. The rows of the accumulators are
/// queries, or keys in backward.cuh.
template <class Config, FragmentRows rows, bool is_partial, int row_tiles, int columns>
struct WarpScores {
  using Activation = typename Config::Activation;
  using Element = typename Config::Element;
  using Scores = Accumulator<row_tiles, columns>;
  /// If the owner is rows of the operand, the first keys may be below 0, where no key is.
  static constexpr bool has_rows_below_0 = Config::Layout::owns_rows;
  static constexpr bool are_ranges =
      rows == FragmentRows::queries ? Config::Mask::keys_are_range : Config::Mask::queries_are_range;
  using Valid = typename FragmentOf<columns / 8, are_ranges>::Type;

  Activation activation;
  Valid valid[row_tiles] = {};
  FragmentInputs<typename Config::Inputs, rows, 0, BiasTile::none, false, has_rows_below_0> inputs[row_tiles];

  /// Before the scores are computed: the inputs of rows are then loaded in the meantime. By all lanes of the warp.
  __device__ WarpScores(const Params& params, const SequencePair& pair, int first_row, int first_column)
      : activation(Activation::of(params, pair.head)) {
    const int row = first_row + Scores::row(0, 0), column = first_column + Scores::column(0, 0);
    if constexpr (is_partial) {
      const auto mask = Config::Mask::of(params, pair);
      for (int r = 0; r < row_tiles; ++r) valid[r] = valid_scores(mask, row + r * 16, column);
    }
    const auto of_pair = Config::Inputs::of(params, pair);
    for (int r = 0; r < row_tiles; ++r) inputs[r] = {of_pair, row + r * 16, column};
  }

  /// Calls visit(r, n, column_tile) for the fragments of a step, whose columns are [step, step + 1) * depth. Their
  /// number in the step is n. Scores are computed one step of the next product at a time, so that the tensor cores and
  /// the arithmetic of the function overlap.
  template <int depth, class Visit>
  __device__ void visit(int step, Visit visit) {
#pragma unroll
    for (int r = 0; r < row_tiles; ++r) {
#pragma unroll
      for (int n = 0; n < depth / 8; ++n) {
        const int column_tile = step * (depth / 8) + n;
        inputs[r].enter(column_tile);
        visit(r, n, column_tile);
      }
    }
  }

  /// Whether the mask excludes score i of a fragment.
  __device__ bool is_masked(int r, int column_tile, int i) const {
    return is_partial && !valid[r].holds(i / 2, column_tile * 8 + i % 2);
  }

  /// Computes P = f(scale * S) and dS = dP * f'(scale * S) for a step, rounded to the element type. Both are 0 where
  /// the mask excludes the pair. With `has_factor`, `factor` multiplies both.
  template <bool has_factor, int depth>
  __device__ void differentiate(int step, const Scores& scores, const Scores& dp,
                                Fragments<Element, row_tiles, depth>& p, Fragments<Element, row_tiles, depth>& ds,
                                float scale, float factor) {
    visit<depth>(step, [&](int r, int n, int column_tile) {
      float value[4];
      float gradient[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float score = scores.at[r][column_tile].part[i] * scale;
        float derivative;
        activation.value_and_derivative(score, inputs[r].at(i), value[i], derivative);
        gradient[i] = dp.at[r][column_tile].part[i] * derivative;  // 0 where dS is not computed
        if constexpr (has_factor) {
          value[i] *= factor;
          gradient[i] *= factor;
        }
        if (is_masked(r, column_tile, i)) value[i] = gradient[i] = 0.0f;
      }
      p.set(r, n, value);
      ds.set(r, n, gradient);
    });
  }

 private:
  /// The valid columns of rows `row` and `row + 8`. A mask accepts rows of 0 or more.
  __device__ static Valid valid_scores(const typename Config::Mask& mask, int row, int first_column) {
    if constexpr (rows == FragmentRows::queries) {
      return mask.template rows<Valid>(row, first_column);
    } else if constexpr (!has_rows_below_0) {
      return mask.template columns<Valid>(row, first_column);
    } else {
      const Valid valid = mask.template columns<Valid>(row < 0 ? max(row + 8, 0) : row, first_column);
      return row < 0 ? valid.after_missing_row(row + 8 >= 0) : valid;
    }
  }
};

}  // namespace gdpa::portable
