// Function: everything that is known of one activation - its tree, its derivative, the programs that evaluate them.
// Immutable and shared; gdpa::Activation is a handle to one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "activation/program.h"
#include "gdpa/activation.h"

namespace gdpa::activation {

struct Parsed;

class Function {
 public:
  /// Parses, binds the parameters, differentiates and simplifies, or returns the one already made from this text.
  static std::shared_ptr<const Function> make(std::string_view text, const std::map<std::string, double>& parameters);

  const std::string& text() const { return text_; }
  const std::string& derivative_text() const { return derivative_text_; }

  const Program& value() const { return value_; }                                ///< results {f}
  const Program& value_and_derivative() const { return value_and_derivative_; }  ///< results {f, f'}

  /// f(0) == 0: rows of zeros then contribute nothing, and tails need no mask.
  bool is_zero_at_zero() const { return is_zero_at_zero_; }

 private:
  Function() = default;
  static std::shared_ptr<const Function> build(Parsed& parsed, const std::map<std::string, double>& bindings,
                                               const std::string& canonical);

  std::string text_;
  std::string derivative_text_;
  Program value_;
  Program value_and_derivative_;
  bool is_zero_at_zero_ = false;
};

/// CUDA C++ of the function as the struct `Activation`, with the members
///     static constexpr float score_factor;
///     static __device__ float value(float s);
///     static __device__ void value_and_derivative(float s, float& f, float& derivative);
/// which take score_factor times the score and return f and f' of the score: a kernel multiplies its own scale by the
/// factor, once. Self-contained but for the headers under kernels/ that it names.
std::string cuda_source(const Function& function, Accuracy accuracy);

}  // namespace gdpa::activation
