// Evaluator: evaluates a Program over arrays of scores on the CPU.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cpu/instruction.h"
#include "expression/program.h"

namespace gdpa::cpu {

/// Evaluates f, or f and f', over arrays of scores, in fp32 and fp64. The constructor takes less than a microsecond for
/// a function of a few steps. An Evaluator is immutable, and several threads may use it at the same time.
///
/// The result for a score depends only on the score: not on its index, on `count` or on alignment. The last bits of a
/// result may differ between processors with different instruction sets.
///
///     const Evaluator forward(function.value());
///     forward.evaluate(scores, count, probabilities);
///     const Evaluator backward(function.value_and_derivative());
///     backward.evaluate(scores, count, probabilities, derivatives);
class Evaluator {
 public:
  /// The number of each input of the program, in order. An input without a number is an array in each call.
  using Inputs = std::vector<std::optional<double>>;

  explicit Evaluator(const activation::Program& program, const Inputs& inputs = {});

  /// results[k][i] = result k of the program at scores[i], for i below count. Input n of the program, if it has no
  /// number, is inputs[n][i]. A result may be `scores` itself; other overlaps are not allowed. T is float or double.
  template <class T>
  void evaluate(const T* scores, std::int64_t count, std::span<T* const> results, const T* const* inputs) const;

  /// The same for a program of f, or of f and f', whose inputs have numbers. `derivative` is given if and only if the
  /// program has two results.
  template <class T>
  void evaluate(const T* scores, std::int64_t count, T* value, T* derivative = nullptr) const {
    evaluate<T>(scores, count, std::array{value, derivative}, nullptr);
  }

 private:
  class Translation;

  std::vector<Instruction> instructions_;
  std::vector<double> constants_;
  std::size_t results_ = 0;
  std::vector<std::size_t> arrays_;  ///< the inputs that are arrays
  std::size_t strips_ = 0;           ///< scratch registers
};

}  // namespace gdpa::cpu
