// Activation: the elementwise function f that replaces softmax, with its symbolic derivative.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gdpa/export.h"

namespace gdpa {

namespace activation {
class Function;
}

/// The accuracy of f and f' in forward and backward. On the CPU both values give the same results. On a GPU, "fast" may
/// use the approximations of the hardware. docs/accuracy.md states the largest error of each.
enum class Accuracy { fast, exact };

/// A function of the score s, from a name ("gelu"), an expression ("s * sigmoid(1.702 * s)"), or an expression with
/// named parameters. The constructor or the text sets the parameters: "a * tanh(b * s) with a = 2, b = 0.5". gdpa
/// parses each distinct text once, so constructing an equal Activation again is a look-up. An Activation is cheap to
/// copy, and several threads may share it.
///
///     gdpa::Activation swish("s * sigmoid(b * s)", {{"b", 1.702}});
///     double slope = swish.derivative(0.5);
///
/// `of_call` names parameters whose numbers are passed with each call (Attention::parameters), such as learned slopes.
/// A new number compiles no kernel.
///
///     gdpa::Activation learned("a * s * sigmoid(b * s)", {}, {"a", "b"});
///     double value = learned.value(0.5, {2.0, 1.702});
///
/// The name Activation::score_factor in `of_call` multiplies the score: f(c s) instead of f(s), for a learned scale.
///
/// Throws Error (value) for a text with an error, which the message marks with a caret, for an unknown name or
/// function, and for a parameter that is missing, unknown, given twice or not finite.
class GDPA_API Activation {
 public:
  /// No expression can have this name.
  static constexpr const char* score_factor = "factor of s";

  explicit Activation(std::string_view text, const std::map<std::string, double>& parameters = {},
                      const std::vector<std::string>& of_call = {});

  /// The names of the parameters of the call, in the order of the constructor.
  const std::vector<std::string>& parameters() const;

  /// The canonical text with all parameters, which identifies the function. Activation(text()) is the same function.
  const std::string& text() const;

  /// f(s) and f'(s) of the definition in fp64, without the approximations of a kernel. `parameters` has the numbers of
  /// the parameters of the call. Throws Error (value) if there are more or fewer.
  double value(double score, const std::vector<double>& parameters = {}) const;
  double derivative(double score, const std::vector<double>& parameters = {}) const;

  /// The derivative of f with respect to a parameter of the call: a function of the score and of the same parameters.
  /// The gradient of the parameter is the sum over all elements of dO * O', where O' is the output of forward() with
  /// this function. Throws Error (value) for another name.
  ///
  ///     gdpa::Activation slope = learned.parameter_derivative("b");
  Activation parameter_derivative(const std::string& name) const;

  /// f' as a simplified expression in s.
  std::string derivative_text() const;

  const activation::Function& function() const { return *function_; }

 private:
  explicit Activation(std::shared_ptr<const activation::Function> function) : function_(std::move(function)) {}

  std::shared_ptr<const activation::Function> function_;
};

/// Returns what a text of the expression language contains, as JSON. Its names need no numbers yet, so that a program
/// can combine texts: python/gdpa/_text.py renames tensors with it. The members are
///
///     functions  the number of functions; with more than one, function h is for query head h
///     end        where the expression ends, and the clause "with a = 2" begins
///     numbers    the numbers of the clause by name: {"a": 2}
///     names      each name in the expression that is not the name of a function or of a constant: [name, begin, end,
///                whether it is an index of a tensor and nothing else]; begin equals end for a position that a named
///                mask reads, such as kv_idx of causal()
///     reads      each read of a tensor: [name, for each axis the name that is the whole index, or ""]
///
/// `is_condition`: the text of a MaskExpression rather than of an Activation. Throws Error (value) for a text that does
/// not follow the grammar.
GDPA_API std::string describe(std::string_view text, bool is_condition = false);

/// A row of the table of named activations.
struct NamedActivation {
  std::string name;
  std::string expression;
  std::string source;  ///< the publication of the definition and its constants
};

/// Returns the names that Activation accepts, including aliases, in the order of the documentation.
///
///     for (const gdpa::NamedActivation& named : gdpa::named_activations()) std::puts(named.name.c_str());
GDPA_API const std::vector<NamedActivation>& named_activations();

}  // namespace gdpa
