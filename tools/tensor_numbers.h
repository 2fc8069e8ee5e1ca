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
  /// `rows_q` and `rows_k` are the rows of query and key, for axes of tokens.
  TensorNumbers(const std::vector<NamedTensor>& named, const std::vector<Tensor>& tensors, int64_t rows_q,
                int64_t rows_k)
      : named_(named), rows_q_(rows_q), rows_k_(rows_k) {
    for (const Tensor& tensor : tensors) numbers_.push_back(tensor.to_double());
  }

  /// A read at a score, as an element of a tensor.
  struct Element {
    std::size_t tensor;
    std::size_t index;
  };

  /// `token_q` and `token_k` are the rows of the score in query and key.
  Element element(const TensorRead& read, const ScorePlace& place, int64_t token_q, int64_t token_k) const {
    const std::vector<int64_t>& sizes = named_[read.parameter].sizes;
    if (read.indices.empty()) {
      return {read.parameter, numbers_[read.parameter].size() == 1 ? 0 : static_cast<std::size_t>(place.h)};
    }
    int64_t index = 0;
    for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
      const TensorRead::Index& given = read.indices[axis];
      const bool has_tokens_q = given.can_be_query_token && sizes[axis] == rows_q_;
      const bool has_tokens_k = given.can_be_key_token && sizes[axis] == rows_k_;
      const int64_t position = has_tokens_q ? token_q : has_tokens_k ? token_k : given.position;
      index = index * sizes[axis] + std::clamp<int64_t>(position, 0, sizes[axis] - 1);
    }
    return {read.parameter, static_cast<std::size_t>(index)};
  }

  double number(const Element& element) const { return numbers_[element.tensor][element.index]; }
  std::size_t size(std::size_t tensor) const { return numbers_[tensor].size(); }

 private:
  const std::vector<NamedTensor>& named_;
  int64_t rows_q_, rows_k_;
  std::vector<std::vector<double>> numbers_;
};

/// Whether the mask of a problem keeps a score. `of_mask` has the tensors of the mask.
inline bool keeps(const Problem& problem, const TensorNumbers& of_mask, const ScorePlace& place, int64_t token_q,
                  int64_t token_k) {
  const Mask& window = problem.mask;
  const int64_t diagonal = window.diagonal == Diagonal::bottom_right ? place.i + place.len_k - place.len_q : place.i;
  if (window.left >= 0 && diagonal - place.j > window.left) return false;
  if (window.right >= 0 && place.j - diagonal > window.right) return false;
  return !problem.mask_expression || problem.mask_expression->keeps(place, [&](const TensorRead& read) {
    return of_mask.number(of_mask.element(read, place, token_q, token_k));
  });
}

}  // namespace gdpa::tool
