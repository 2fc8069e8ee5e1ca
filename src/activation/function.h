// Function: everything that is known of one activation - its tree, its derivative, the programs that evaluate them.
// Immutable and shared; gdpa::Activation is a handle to one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "activation/program.h"
#include "activation/tree.h"
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

  /// f without the bounds that only infinite scores need, guards.h: f(s) is that of min(max(s, low), high) of
  /// finite_scores(), and of s itself where s is finite. Where f has no such bounds it is value().
  const Program& value_of_finite() const { return value_of_finite_; }
  const Range& finite_scores() const { return finite_scores_; }

  /// The same without any bound of guard(): of scores that need one a result is not finite, or the same anyhow
  /// (is_same_where_finite proves it).
  const Program& unguarded_value_and_derivative() const { return unguarded_value_and_derivative_; }
  bool has_guards() const { return unguarded_value_and_derivative_.steps.size() < value_and_derivative_.steps.size(); }

 private:
  Function() = default;
  static std::shared_ptr<const Function> build(Parsed& parsed, const std::map<std::string, double>& bindings,
                                               const std::string& canonical);

  std::string text_;
  std::string derivative_text_;
  Program value_;
  Program value_and_derivative_;
  Program value_of_finite_;
  Program unguarded_value_and_derivative_;
  Range finite_scores_ = {};
};

/// The argument that a forward kernel passes to the function, and the type of P.
struct ForwardForm {
  /// x is score_factor * scale * (Q K^T). Else it is Q K^T: of a homogeneous function (degree.h), whose output is then
  /// multiplied by scale^degree.
  bool scales_scores = true;
  /// P is rounded to fp16, so value_factor must suit its range.
  bool has_fp16_p = true;
};

/// CUDA C++ of the function as two structs. Forward takes
///     struct Activation {
///       static constexpr bool scales_scores;       // as ForwardForm says what x is
///       static constexpr float score_factor;
///       static constexpr float value_factor;
///       static constexpr bool clamps_at_zero;
///       static constexpr bool bounds_scores;
///       static __device__ float value(float x);
///       static __device__ float value_of_finite(float x);
///     };
/// where f(s) is value_factor * value(x), or value_factor * max(value(x), 0) where it clamps: a kernel multiplies its
/// own scale by the one factor and the output by the other, once, and clamps where it rounds. value_of_finite is value
/// without the bounds that only an infinite x needs: of a finite x the same bits, of an infinite one the same or NaN.
/// Where it is value itself, bounds_scores is false. Backward takes
///     struct ActivationWithDerivative {
///       static constexpr float score_factor;
///       static constexpr float value_factor;  // 1
///       static __device__ void value_and_derivative(float x, float& f, float& derivative);
///     };
/// which gives f / value_factor and f' of the score. Hopper's backward computes with UnguardedActivationWithDerivative
/// first, which has the same members, and none of the bounds that huge and infinite scores need: where one is missing,
/// a result is not finite. Self-contained but for the headers under kernels/ that it names.
std::string cuda_source(const Function& function, Accuracy accuracy, ForwardForm form = {});

}  // namespace gdpa::activation
