// TileInputs: the inputs of a function (activation/input.h) for the scores of a tile, as arrays for the Evaluator.
#pragma once

#include <cstdint>
#include <vector>

#include "activation/function.h"
#include "cpu/evaluator.h"
#include "definition/params.h"

namespace gdpa::cpu {

/// Returns the numbers of the inputs that are the same for all scores of a query head. The other inputs have none.
Evaluator::Inputs inputs_of_head(const activation::Function& function, const Params& params, int64_t head);

/// Some rows and columns of the scores of one batch entry and query head.
struct ScoreTile {
  int64_t b = 0;
  int64_t head = 0;
  Range queries;
  Range keys;  ///< may end after the last key of the sequence
};

/// Computes the inputs of tiles. Each thread has its own object. All numbers are fp64 until they are stored, so that
/// positions and integers of tensors are exact.
template <class Compute>
class TileInputs {
 public:
  TileInputs(const activation::Function& function, const Params& params);

  /// Computes the inputs of a tile. `keeps_offsets`: also the offset of each element that is read, for offsets().
  void fill(const ScoreTile& tile, bool keeps_offsets = false);

  /// The arrays of the inputs, in rows of queries and columns of keys. Null for an input with a number
  /// (inputs_of_head), and if the function has no other input.
  const Compute* const* arrays() const { return arrays_.data(); }

  /// The offsets in elements, in a tensor with the strides of the gradient, of the elements that a read has read. Null
  /// if the gradient of the tensor is not wanted.
  const int64_t* offsets(std::size_t input) const { return offsets_[input].data(); }

 private:
  void fill_row(const ScoreTile& tile, int64_t query);
  void fill_read(std::size_t input, const ScoreTile& tile);

  const activation::Function& function_;
  const Params& params_;
  bool keeps_offsets_ = false;
  int64_t columns_ = 0;
  int64_t row_ = 0;  ///< of the tile
  std::vector<std::vector<double>> rows_;  ///< of each input: its numbers in one row of the tile
  std::vector<double> index_;
  std::vector<int64_t> offset_;       ///< in the tensor
  std::vector<int64_t> grad_offset_;  ///< in its gradient
  std::vector<std::vector<Evaluator>> evaluators_;  ///< of the axes of each read
  std::vector<const double*> row_arrays_;
  std::vector<std::vector<Compute>> tiles_;
  std::vector<const Compute*> arrays_;
  std::vector<std::vector<int64_t>> offsets_;
};

}  // namespace gdpa::cpu
