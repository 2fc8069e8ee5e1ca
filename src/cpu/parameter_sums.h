// The gradients of the tensors that the function reads. dP is the gradient of P, so the gradient of an input of the
// function at one score is dP times the derivative of f with respect to this input. The gradient of an element of a
// tensor is the sum of these terms over all scores that read the element. The units of backward compute the terms.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cpu/evaluator.h"
#include "cpu/inputs.h"
#include "definition/params.h"
#include "expression/function.h"

namespace gdpa::cpu {

/// The sums of the terms in double. Each group of units has sums of its own, to which the units of the group add in
/// their order, so the result does not depend on the assignment of groups to threads.
class ParameterSums {
 public:
  /// The gradient of one input of the function.
  struct Term {
    std::size_t input;
    std::size_t tensor;
    std::size_t result;  ///< of the evaluator: the derivative of f with respect to the input
  };

  /// The terms of a query head. An input on which f of this head does not depend has none.
  struct Head {
    Evaluator evaluator;  ///< f, f' and the derivatives of the terms. Equal derivatives are one result
    std::size_t results;
    std::vector<Term> terms;
  };

  /// No sums if `params` wants no gradient of a tensor.
  ParameterSums(const activation::Function& function, const Params& params, int64_t groups);

  /// Returns the number of groups for these units: one for each thread, if their sums fit into a bounded memory. At
  /// least one.
  static int64_t group_count(const Params& params, int threads, std::size_t units);

  bool is_empty() const { return heads_.empty(); }
  const Head& head(int64_t head) const { return heads_[static_cast<std::size_t>(head)]; }

  /// Returns the params with the strides of contiguous sums in place of the strides of the gradients.
  const Params& params() const { return params_; }

  /// Returns the sums of a group for one tensor.
  SumCopies of(int64_t group, std::size_t tensor);

  /// Adds the sums of all groups and stores the gradients of `params`.
  void store(const Params& params) const;

 private:
  Params params_;
  std::vector<Head> heads_;
  int64_t groups_;
  std::array<int64_t, most_parameters> first_ = {};  ///< the sums of each tensor: copies of group 0, group 1, ...
  std::array<int64_t, most_parameters> copies_ = {};
  std::vector<double> sums_;
};

}  // namespace gdpa::cpu
