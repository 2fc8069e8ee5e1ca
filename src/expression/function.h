// Function: the tree of an activation, its derivative, and the programs that evaluate both.
// Immutable and shared; gdpa::Activation is a handle to one.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "expression/facts.h"
#include "expression/input.h"
#include "expression/program.h"
#include "expression/tree.h"
#include "gdpa/activation.h"

namespace gdpa::activation {

struct Parsed;
enum class Form;

class Function {
 public:
  /// Parses the text, binds the parameters, differentiates and simplifies. Returns the existing Function of an equal
  /// text. `of_call` names the tensors that are passed with each call. The Function of a condition is 1 where the
  /// condition holds, else 0.
  static std::shared_ptr<const Function> make(std::string_view text, const std::map<std::string, double>& parameters,
                                              const std::vector<std::string>& of_call, Form form);

  const std::string& text() const { return text_; }

  /// Identifies the function: the text, and the names of the tensors of the call, which determine their indices.
  const std::string& identity() const { return identity_; }
  const std::string& derivative_text() const { return derivative_text_; }

  /// The names of the tensors that are passed with each call, in the order of their indices.
  const std::vector<std::string>& parameters() const { return parameters_; }

  /// The inputs of the programs: the numbers that do not depend on the score.
  const std::vector<Input>& inputs() const { return inputs_; }

  /// f times an element of one more tensor, whose only index is the position of the query: the last of parameters(),
  /// with a name that no expression can have. f is not the derivative of another function.
  std::shared_ptr<const Function> times_row_scale() const;

  /// The number of functions of a list, of which function h is for query head h. 1: the function is for all heads.
  std::size_t functions() const { return functions_; }

  /// Returns f for one query head, with the same inputs: the function itself unless the expression depends on h apart
  /// from the indices of reads.
  const Function& of_head(int64_t head) const;

  /// If f(s) = g(s + e), where only e depends on inputs: g, a function without inputs, and e, without the score.
  /// Otherwise null.
  const Function* of_sum() const { return of_sum_.get(); }
  const Program& shift() const { return shift_; }

  /// Whether f is the same function for every score of a head: it reads no element of a tensor, and no position but h.
  bool is_same_in_head() const;

  /// The derivative of f with respect to the parameter with this index, which is read without an index: a function of
  /// the score and of the same inputs.
  std::shared_ptr<const Function> parameter_derivative(std::size_t index) const;

  /// The derivatives of f with respect to these inputs, as results in this order.
  Program input_derivatives(const std::vector<std::size_t>& inputs) const;

  /// The results {f, f'}, then the derivatives of f with respect to these inputs. Equal results are the same step.
  Program value_and_derivatives(const std::vector<std::size_t>& inputs) const;

  const Program& value() const { return value_; }                                ///< results {f}
  const Program& value_and_derivative() const { return value_and_derivative_; }  ///< results {f, f'}

  /// f without the bounds that only infinite scores need (guards.h). f(s) equals value_of_finite at the score bounded
  /// to finite_scores(), and at s itself if s is finite. Without such bounds in f, it is value().
  const Program& value_of_finite() const { return value_of_finite_; }
  const Range& finite_scores() const { return finite_scores_; }

  /// What plans need to know about the function, computed at the first call.
  const FunctionFacts& facts() const;

  /// Whether f, or a function of the list, has such bounds. For f(s) = g(s + e), these are bounds of the sum.
  bool bounds_scores() const { return facts().bounds_scores; }

  /// f and f' without any bound of guard(). Each result is the same, or is not finite (is_same_where_finite proves it).
  const Program& unguarded_value_and_derivative() const { return unguarded_value_and_derivative_; }
  bool has_guards() const { return unguarded_value_and_derivative_.steps.size() < value_and_derivative_.steps.size(); }

 private:
  Function() = default;
  static std::shared_ptr<const Function> make_new(std::string_view text,
                                                  const std::map<std::string, double>& parameters,
                                                  const std::vector<std::string>& of_call, Form form);
  static std::shared_ptr<Function> build(Tree& tree, NodeId bound, const std::string& canonical,
                                         const std::vector<std::string>& of_call);
  bool depends_on_head() const;

  std::string text_;
  std::string identity_;
  std::string derivative_text_;
  Program value_;
  Program value_and_derivative_;
  Program value_of_finite_;
  Program unguarded_value_and_derivative_;
  Range finite_scores_ = {};
  std::shared_ptr<const Function> of_sum_;
  Program shift_;
  std::vector<std::string> parameters_;
  std::size_t functions_ = 1;
  mutable std::mutex mutex_;  ///< of the next two, which are built when they are needed
  mutable std::map<int64_t, std::shared_ptr<const Function>> of_heads_;
  mutable std::vector<std::shared_ptr<const Function>> parameter_derivatives_;
  mutable std::once_flag facts_once_;
  mutable FunctionFacts facts_;
  std::vector<Input> inputs_;
  Tree tree_;  ///< with inputs only
  NodeId root_ = 0;
};

/// The argument that a forward kernel passes to the function, and the type of P.
struct ForwardForm {
  /// If true, x is score_factor * scale * (Q K^T). If false, x is Q K^T: the function is homogeneous (degree.h), and
  /// the kernel multiplies the output by scale^degree.
  bool scales_scores = true;
  /// Forward: the kernel can multiply Q by the factor from Q K^T to x, so that no score is multiplied. This rounds Q a
  /// second time, which not every function tolerates (rounded_query.h).
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

/// Returns the CUDA C++ of the function as structs. `tensor_types` is Problem::tensor_types. `Inputs` is the struct of
/// the inputs at a position (cuda_inputs.h). Forward uses
///     struct Activation {
///       static constexpr bool scales_scores;       // the definition of x, as in ForwardForm
///       static constexpr float score_factor;
///       static constexpr float value_factor;
///       static constexpr bool clamps_at_zero;
///       static constexpr bool bounds_scores;
///       static __device__ Activation of(const gdpa::Params&, int head);  // with the numbers of the head
///       __device__ float value(float x, const Inputs& in) const;
///       __device__ float value_of_finite(float x, const Inputs& in) const;
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
///       __device__ void value_and_derivative(float x, const Inputs& in, float& f, float& derivative) const;
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
