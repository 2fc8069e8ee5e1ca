// TensorNumbers: the elements that an expression reads from the tensors of a call, in fp64, by the definition.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gdpa/score.h"
#include "workload.h"

namespace gdpa::tool {

/// The tensors of an expression. Several threads may share an object.
class TensorNumbers {
 public:
  TensorNumbers(const std::vector<NamedTensor>& named, const std::vector<Tensor>& tensors) : named_(named) {
    for (const Tensor& tensor : tensors) numbers_.push_back(tensor.to_double());
  }

  /// A read at a score, as an element of a tensor.
  struct Element {
    std::size_t tensor;
    std::size_t index;
  };

  Element element(const TensorRead& read, const ScorePlace& place) const {
    const std::vector<int64_t>& sizes = named_[read.parameter].sizes;
    if (read.indices.empty()) {
      return {read.parameter, numbers_[read.parameter].size() == 1 ? 0 : static_cast<std::size_t>(place.head)};
    }
    int64_t index = 0;
    for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
      index = index * sizes[axis] + std::clamp<int64_t>(read.indices[axis], 0, sizes[axis] - 1);
    }
    return {read.parameter, static_cast<std::size_t>(index)};
  }

  double number(const Element& element) const { return numbers_[element.tensor][element.index]; }
  std::size_t size(std::size_t tensor) const { return numbers_[tensor].size(); }

 private:
  const std::vector<NamedTensor>& named_;
  std::vector<std::vector<double>> numbers_;
};

/// Whether the mask of a problem keeps a score. `of_mask` has the tensors of the mask.
inline bool keeps(const Problem& problem, const TensorNumbers& of_mask, const ScorePlace& place) {
  const Mask& window = problem.mask;
  const int64_t diagonal =
      window.diagonal == Diagonal::bottom_right ? place.q_idx + place.len_k - place.len_q : place.q_idx;
  if (window.left >= 0 && diagonal - place.kv_idx > window.left) return false;
  if (window.right >= 0 && place.kv_idx - diagonal > window.right) return false;
  return !problem.mask_expression || problem.mask_expression->keeps(place, [&](const TensorRead& read) {
    return of_mask.number(of_mask.element(read, place));
  });
}

}  // namespace gdpa::tool
