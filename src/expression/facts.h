// FunctionFacts: what the plan of a call needs to know about a function, apart from the types and the sizes of its
// tensors. Function::facts() computes it once for each function.
#pragma once

#include <optional>

#include "gdpa/activation.h"

namespace gdpa::activation {

class Function;

struct FunctionFacts {
  int reads = 0;                      ///< the elements of tensors that f reads at each score
  int reads_of_keys = 0;              ///< of these, the elements whose indices depend on the position of the key alone
  int reads_of_differences = 0;       ///< the same, on the difference of the two positions alone
  bool reads_numbers = false;         ///< f reads a tensor without an index
  bool reads_only_numbers = false;    ///< f reads neither elements nor positions; true if it has no inputs
  bool reads_query_position = false;  ///< f or f' depends on the batch entry, on the position of the query, or on the
                                      ///< length or the first row of its sequence
  bool bounds_scores = false;         ///< f, or a function of the list, has bounds that only infinite scores need
                                      ///< (Function::value_of_finite). For f(s) = g(s + e), these bound the sum.
  bool has_removable_guards = false;  ///< f or f' has guards that a first pass of backward may leave out. The guards
                                      ///< of a single function stay if they may depend on inputs.
  std::optional<double> degree;       ///< f(c s) = c^degree f(s) for every c > 0 (degree.h)

  /// The elements that the rows of a tile share.
  int reads_of_lines() const { return reads_of_keys + reads_of_differences; }

  /// Whether a step of f and f' is a long polynomial in fp32 (erf, softplus, powers, sines), which needs many registers
  /// in addition to the accumulators of the products. The fast forms of some of these steps are short.
  bool has_long_steps(Accuracy accuracy) const {
    return accuracy == Accuracy::exact ? has_long_exact_steps : has_long_fast_steps;
  }
  bool has_long_exact_steps = false, has_long_fast_steps = false;
};

/// Computes the facts. Callers use Function::facts(), which stores them.
FunctionFacts facts_of(const Function& function);

}  // namespace gdpa::activation
