// The definition in fp64, not optimised for speed. `gdpa run` compares the library with it.
#pragma once

#include <vector>

#include "problem.h"
#include "workload.h"

namespace gdpa::tool {

struct Reference {
  std::vector<double> output, grad_query, grad_key, grad_value;

  /// The gradient of a tensor, and the sum of the squares of all terms in its sums.
  struct OfTensor {
    std::vector<double> sums;
    double squares = 0;
  };
  std::vector<OfTensor> grad_tensors;  ///< in the order of Problem::tensors
};

/// The precision of a reference.
enum class Precision {
  exact,    ///< fp64
  of_type,  ///< rounded as in PyTorch: S, P, dP, dS and the results to the type of the operands, or with tf32 each
            ///< operand of a product
};

/// Reads the stored operands of `workload`. It shares only the definition of the score in fp64 (ScoreDefinition) with
/// the library.
Reference compute_reference(const Problem& problem, const Workload& workload, Precision precision = Precision::exact);

}  // namespace gdpa::tool
