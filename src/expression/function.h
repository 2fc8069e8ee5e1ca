// Function: the tree of an activation, its derivative, and the programs that evaluate both.
// Immutable and shared; gdpa::Activation is a handle to one.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "expression/input.h"
#include "expression/program.h"
#include "expression/tree.h"
#include "gdpa/activation.h"

namespace gdpa::activation {

struct Parsed;
enum class Form;

/// What the plan of a call needs to know about a function, apart from the types and the sizes of its tensors.
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
  std::optional<double> degree;       ///< f(c s) = c^degree f(s) for every c > 0 (forms.h)

  /// The elements that the rows of a tile share.
  int reads_of_lines() const { return reads_of_keys + reads_of_differences; }

  /// Whether a step of f and f' is a long polynomial in fp32 (erf, softplus, powers, sines), which needs many registers
  /// in addition to the accumulators of the products. The fast forms of some of these steps are short.
  bool has_long_steps(Accuracy accuracy) const {
    return accuracy == Accuracy::exact ? has_long_exact_steps : has_long_fast_steps;
  }
  bool has_long_exact_steps = false, has_long_fast_steps = false;
};

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

  /// The derivatives of f with respect to these inputs, as results in this order: `after_value`, after the results
  /// {f, f'}. Equal results are the same step. The function has inputs.
  Program derivatives(const std::vector<std::size_t>& inputs, bool after_value) const;

  const Program& value() const { return value_; }                                ///< results {f}
  const Program& value_and_derivative() const { return value_and_derivative_; }  ///< results {f, f'}

  /// f without the bounds that only infinite scores need (guards.h). f(s) equals value_of_finite at the score bounded
  /// to finite_scores(), and at s itself if s is finite. Without such bounds in f, it is value().
  const Program& value_of_finite() const { return value_of_finite_; }
  const Range& finite_scores() const { return finite_scores_; }

  /// Computed at the first call.
  const FunctionFacts& facts() const;

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

}  // namespace gdpa::activation
