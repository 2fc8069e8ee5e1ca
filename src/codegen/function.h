// Prints a function and its derivatives as CUDA C++.
#pragma once

#include <string>

#include "expression/function.h"

namespace gdpa::activation {

/// The argument that a forward kernel passes to the function, and the type of P.
struct ForwardForm {
  /// If true, x is score_factor * scale * (Q K^T). If false, x is Q K^T: the function is homogeneous (forms.h), and
  /// the kernel multiplies the output by scale^degree.
  bool scales_scores = true;
  /// Forward: the kernel can multiply Q by the factor from Q K^T to x, so that no score is multiplied. This rounds Q a
  /// second time, which not every function tolerates (forms.h).
  bool may_multiply_query = false;
  /// P is rounded to fp16, so value_factor must suit its range.
  bool has_fp16_p = true;
  /// The function is one of a list. A kernel adds up dV over heads with different functions, so backward has no
  /// value_factor, and only functions with a clamp at zero could leave it to the rounding.
  bool is_of_list = false;
  /// Backward: the kernel multiplies dV and dS by factors of the head, which are products of its numbers. The type of P
  /// and dS has the range of fp32, and each key head has one query head.
  bool takes_head_factors = false;
  /// Backward: the kernel multiplies dV and dS by constant factors. The type of P and dS has the range of fp32.
  bool takes_constant_factors = false;
  /// Backward: bit n for tensor n, a number of the head whose gradient the kernel computes with f and f'.
  unsigned wanted_numbers = 0;
};

/// Returns the CUDA C++ of the function as structs. `tensor_types` is Problem::tensor_types. `InputValues` is the
/// struct of the inputs at a position (inputs.h). Forward uses
///     struct Activation {
///       static constexpr bool scales_scores;       // the definition of x, as in ForwardForm
///       static constexpr float score_factor;
///       static constexpr float value_factor;
///       static constexpr bool clamps_at_zero;
///       static constexpr bool bounds_scores;
///       static __device__ Activation of(const gdpa::Params&, int head);  // with the numbers of the head
///       __device__ float value(float x, const InputValues& in) const;
///       __device__ float value_of_finite(float x, const InputValues& in) const;
///       __device__ void visit(Body body) const;    // calls body(function) with the function of the head
///       static constexpr bool multiplies_query;    // Q is multiplied; in a list: for at least one head
///       // the factor of Q, 1 for a head for which Q is not multiplied
///       static __device__ float query_factor_of(const gdpa::Params&, int head, float scale);
///       static __device__ float value_factor_of(const gdpa::Params&, int head);
///     };
/// For a list of functions, visit() selects one of several structs, each with its own factors and without a list, so
/// that each function decides whether Q of its head is multiplied. value() also selects, for each score, and includes
/// the factors. Otherwise visit() passes the struct itself.
///
/// f(s) is value_factor * value(x), or value_factor * max(value(x), 0) if clamps_at_zero. A kernel multiplies its scale
/// by score_factor and the output by value_factor, and clamps during the rounding. value_of_finite is value without the
/// bounds that only an infinite x needs. It has the same bits for a finite x, and the same bits or NaN for an infinite
/// x. If it is equal to value, bounds_scores is false. Backward uses
///     struct ActivationWithDerivative {
///       static constexpr float score_factor;
///       static __device__ ActivationWithDerivative of(const gdpa::Params&, int head);
///       __device__ float value_factor() const;       // 1 unless takes_head_factors or
///                                                    // takes_constant_factors
///       __device__ float derivative_factor() const;  // the same
///       static constexpr bool derivative_lacks_one;  // false unless derivative_factor() may differ from 1
///       __device__ void value_and_derivative(float x, const InputValues& in, float& f, float& derivative) const;
///     };
/// It computes f / value_factor and f' / derivative_factor. With derivative_lacks_one, it computes f' /
/// derivative_factor - 1, and dS is dP times this number, plus dP, in one instruction. Hopper's backward first uses
/// UnguardedActivationWithDerivative, which has the same members, but no bounds for huge and infinite scores. If a
/// bound would be needed, a result is not finite. With wanted_numbers, there is also
///     struct ActivationWithGradients {  // with the members of ActivationWithDerivative
///       static constexpr int numbers;   // whose gradients are wanted
///       static __device__ int tensor_of(int number);
///       // ds is dp f' / derivative_factor, and terms are dp times the derivatives by the numbers, without factors.
///       __device__ void value_and_terms(float x, float dp, float& f, float& ds, float (&terms)[numbers]) const;
///       __device__ void multiply_by_factors(float (&totals)[numbers]) const;  // the sums of terms
///     };
/// The text includes only headers under kernels/.
std::string cuda_source(const Function& function, Accuracy accuracy, ForwardForm form = {}, unsigned tensor_types = 0);

}  // namespace gdpa::activation
