// The inputs of a function or of a mask (expression/input.h) for the scores of a tile, as arrays for the Evaluator or
// as intervals, and the sums of the gradients of the tensors that they read.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cpu/evaluator.h"
#include "definition/params.h"
#include "expression/function.h"
#include "expression/rewrite/interval.h"

namespace gdpa::cpu {

/// Returns the numbers of the inputs that are the same for all scores of a query head. The other inputs have none.
Evaluator::Inputs inputs_of_head(const activation::Function& function, const BoundTensors& tensors, int64_t head);

/// The evaluators of the programs of a function: one for each query head if heads may differ, otherwise one for all.
class HeadEvaluators {
 public:
  /// program(head) is the program for a query head.
  template <class ProgramOfHead>
  HeadEvaluators(const activation::Function& function, const BoundTensors& tensors, int64_t heads,
                 const ProgramOfHead& program) {
    const int64_t count = depends_on_head(function) ? heads : 1;
    evaluators_.reserve(static_cast<std::size_t>(count));
    for (int64_t head = 0; head < count; ++head) {
      evaluators_.emplace_back(program(head), inputs_of_head(function, tensors, head));
    }
  }

  bool differ() const { return evaluators_.size() > 1; }
  const Evaluator& of(int64_t head) const { return evaluators_[static_cast<std::size_t>(differ() ? head : 0)]; }

 private:
  static bool depends_on_head(const activation::Function& function);

  std::vector<Evaluator> evaluators_;
};

/// Some rows and columns of the scores of one batch entry and query head.
struct ScoreTile {
  int64_t b = 0;
  int64_t head = 0;
  Range queries;
  Range keys;  ///< may end after the last key of the sequence
};

/// The part of the work that is the same for all tiles of a call.
class InputPlan {
 public:
  explicit InputPlan(const activation::Function& function);

  struct Axis {
    std::optional<activation::Index> bare;  ///< the index is this position
    std::size_t input = 0;                  ///< of `bare`
    bool depends_on_key = false;
    std::optional<Evaluator> evaluator;  ///< of another index
    bool has_rows = false;               ///< the index is the row of the packed operand
  };

  struct Input {
    /// The positions in a tile that the input depends on. Each pattern is computed with the fewest elements.
    activation::Dependence pattern = activation::Dependence::none;
    bool is_read_by_score = false;
    bool is_read_by_index = false;  ///< of a later read, other than as a bare position
    std::vector<Axis> axes;
    int run_axis = -1;  ///< the only axis that depends on the key, if its index is j
  };

  /// Whether an index that does not exist has been reported. From this call on, one has.
  bool has_reported() const { return has_reported_.exchange(true); }

  /// GDPA_CHECK_INDICES=1: every index of a score that the mask keeps is checked. No pattern is used then.
  bool checks_indices() const { return checks_indices_; }

  const activation::Function& function() const { return function_; }
  bool is_empty() const { return inputs_.empty(); }
  const std::vector<Input>& inputs() const { return inputs_; }

 private:
  const activation::Function& function_;
  std::vector<Input> inputs_;  ///< none if every input is the same in a head
  bool checks_indices_ = false;
  mutable std::atomic<bool> has_reported_ = false;
};

/// The sums of the gradient of a tensor: one number for each element, in one or several copies. Terms of an element
/// that follow each other go to different copies, because an addition to an address waits for the previous one there.
struct SumCopies {
  double* first;
  int64_t elements;
  int64_t copies;
};

/// Computes the inputs of tiles. Each unit of work has its own object. Indices are computed in fp64, so that positions
/// and integers of tensors are exact.
template <class Compute>
class TileInputs {
 public:
  /// Whether the mask keeps a score of the tile. Only a check of indices asks.
  using Keeps = std::function<bool(int64_t query, int64_t key)>;

  /// Without `keeps`, an index of every score is checked.
  TileInputs(const InputPlan& plan, const Params& params, const BoundTensors& tensors, Keeps keeps = {});

  /// Computes the inputs of a tile. `keeps_offsets`: also the offsets that add_gradient() needs.
  void fill(const ScoreTile& tile, bool keeps_offsets = false);

  /// Computes an interval of the numbers of each input in a tile, which may be wider for an input that depends on both
  /// positions.
  void enclose(const ScoreTile& tile, std::vector<activation::Interval<double>>& intervals);

  /// The arrays of the inputs, in rows of queries and columns of keys. Null for an input with a number
  /// (inputs_of_head), and if the function has no other input.
  const Compute* const* arrays() const { return arrays_.data(); }

  /// Adds the gradients of an input that a tensor has at all scores of the tile to the elements that it has read. The
  /// sums have the strides of Params::grad_parameters.
  void add_gradient(std::size_t input, const Compute* terms, const SumCopies& sums);

 private:
  using Axis = InputPlan::Axis;

  /// The numbers of an input for consecutive keys.
  struct Line {
    std::vector<double> numbers;   ///< of the key position, and of an input that an index reads. Otherwise one number
    std::vector<int64_t> offsets;  ///< of a read, in the gradient: one for each element of the pattern
    std::vector<int64_t> starts;   ///< of a read with a run axis, in place of offsets: one for each row
  };

  void begin(const ScoreTile& tile, bool fills_tiles, bool keeps_offsets);
  template <class Body>
  void for_each_fill(const Body& body);
  void fill_input(std::size_t input, int64_t row);
  void fill_index(std::size_t input, int64_t row);
  void fill_read(std::size_t input, int64_t row);
  double number_of(const activation::Input& input, int64_t row) const;
  int64_t line_size(activation::Dependence pattern) const;
  void spread(std::size_t input, int64_t row);
  void read_line(std::size_t input, int64_t row, int64_t count, Compute* values);
  double index_at(const InputPlan::Axis& axis, int64_t row);
  const double* index_of(const InputPlan::Axis& axis, int64_t count);
  double first_of(const InputPlan::Axis& axis) const;
  template <class At>
  void check(std::size_t input, std::size_t axis, int64_t row, int64_t count, const At& at) const;
  void add_run(std::size_t input, int64_t row, const Compute* terms, double* sums) const;

  const InputPlan& plan_;
  const Params& params_;
  const BoundTensors& tensors_;
  Keeps keeps_;
  ScoreTile tile_;
  bool keeps_offsets_ = false;
  bool fills_tiles_ = true;
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  std::vector<Line> lines_;
  std::vector<double> index_;
  std::vector<double> place_;       ///< of a line: offsets in the tensor
  std::vector<double> grad_place_;  ///< of a line: offsets in the sums of its gradient
  std::vector<int64_t> offset_;     ///< of a line, in the tensor
  std::vector<Compute> line_;       ///< the numbers of the last filled input that are not in its tile yet
  std::vector<double> sums_;        ///< of the terms of each element
  std::vector<const double*> row_arrays_;
  std::vector<std::vector<Compute>> tiles_;
  std::vector<const Compute*> arrays_;
};

}  // namespace gdpa::cpu
