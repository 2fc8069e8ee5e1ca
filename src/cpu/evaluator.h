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

  /// value[i] = f(scores[i]) and derivative[i] = f'(scores[i]) for i below count, for a program with the results {f} or
  /// {f, f'} whose inputs have numbers. `derivative` is given if and only if the program has two results. Either output
  /// may be `scores` itself; other overlaps are not allowed.
  void evaluate(const float* scores, std::int64_t count, float* value, float* derivative = nullptr) const;
  void evaluate(const double* scores, std::int64_t count, double* value, double* derivative = nullptr) const;

  /// The same for any number of results, with an array inputs[n] for each input n that has no number.
  void evaluate(const float* scores, std::int64_t count, std::span<float* const> results,
                const float* const* inputs) const;
  void evaluate(const double* scores, std::int64_t count, std::span<double* const> results,
                const double* const* inputs) const;

 private:
  /// A constant, repeated over the longest vector.
  struct Constant {
    alignas(64) std::array<float, 16> float32;
    alignas(64) std::array<double, 8> float64;
  };

  template <class T>
  void evaluate_strips(const T* scores, std::int64_t count, std::span<T* const> results, const T* const* inputs) const;

  std::vector<Instruction> instructions_;
  std::vector<Constant> constants_;
  std::size_t results_ = 0;
  std::vector<std::size_t> arrays_;  ///< the inputs that are arrays
  std::size_t strips_ = 0;           ///< scratch registers
};

}  // namespace gdpa::cpu
