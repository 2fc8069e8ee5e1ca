// The mask of a call on the CPU: the keys of a block of queries, the part of a tile of scores that is computed, and the
// valid scores of the tile. The mask is a window (gdpa::Mask), which needs no memory, or an expression, which
// is evaluated for each tile.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cpu/evaluator.h"
#include "cpu/inputs.h"
#include "definition/params.h"
#include "expression/function.h"
#include "expression/rewrite/interval.h"

namespace gdpa::cpu {

/// The part of the work that is the same for all tiles of a call.
class MaskPlan {
 public:
  /// `expression` is null for a window.
  MaskPlan(const activation::Function* expression, const Params& params);

  bool is_expression() const { return expression_ != nullptr; }
  const activation::Function& expression() const { return *expression_; }
  const InputPlan& inputs() const { return inputs_; }

  /// Of an expression.
  const HeadEvaluators& evaluators() const { return *evaluators_; }

 private:
  const activation::Function* expression_;
  InputPlan inputs_;
  std::optional<HeadEvaluators> evaluators_;
};

/// The mask for the tiles of a unit of work. Each unit has its own object. Compute is the type of the scores.
template <class Compute>
class TileMask {
 public:
  TileMask(const MaskPlan& plan, const Params& params);

  /// Sets the batch entry of the next tiles.
  void enter(int64_t b);

  /// Returns a range with all keys that at least one of these queries attends to, and the same for queries. The window
  /// of a mask expression is all.
  Range keys(Range queries) const;
  Range queries(Range keys) const;

  /// Sets the tile, and returns the columns that have valid scores, counted from the first key of the tile and rounded
  /// outward to vector boundaries: none if the mask excludes the tile. With a mask
  /// that does not depend on the head, the same tile of another head costs nothing.
  Range enter_tile(int64_t head, Range queries, Range keys);

  /// Writes 0 to the elements of the tile (queries x columns, dense) that the mask excludes or that have no key. It
  /// selects and does not multiply, because f may be infinite at an excluded score.
  void clear_masked(Compute* tile) const;

  /// Whether the mask keeps a score of the tile.
  bool keeps(int64_t query, int64_t key) const;

  /// The number of scores of the tile that the mask keeps.
  int64_t kept_scores() const;

 private:
  void classify();
  void evaluate();

  const MaskPlan& plan_;
  const Params& params_;
  int64_t length_q_ = 0;
  int64_t length_k_ = 0;
  ScoreTile tile_;
  Range columns_;
  // Of an expression. The condition is computed in fp64, so that positions and integers of tensors are exact.
  bool keeps_all_ = false;  ///< all scores of the tile
  TileInputs<double> inputs_;
  std::vector<activation::Interval<double>> bounds_;
  std::vector<double> truth_;   ///< 1 or 0 for each key of the tile
  std::vector<Compute> valid_;  ///< the same for each of the columns, which may end after the last key
};

/// Returns the number of scores that the mask expression keeps, in all query heads.
double kept_scores(const activation::Function& expression, const Params& params);

}  // namespace gdpa::cpu
