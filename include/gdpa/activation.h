// Activation: the elementwise function f that stands where attention has softmax, with its derived derivative.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gdpa/export.h"

namespace gdpa {

namespace activation {
class Function;
}

/// How closely the compiled f and f' follow their definition; used alike in both directions. On the CPU both are the
/// same, on a GPU "fast" may use the hardware's approximations; docs/accuracy.md states the worst error of each.
enum class Accuracy { fast, exact };

/// A function of the score s, made from a name ("gelu"), an expression ("s * sigmoid(1.702 * s)"), or an expression
/// with named parameters, bound here or in the text: "a * tanh(b * s) with a = 2, b = 0.5". Parsed once per distinct
/// text and shared afterwards: constructing one again costs a look-up. Cheap to copy, safe to share between threads.
///
///     gdpa::Activation swish("s * sigmoid(b * s)", {{"b", 1.702}});
///     double slope = swish.derivative(0.5);
///
/// Throws Error (value) for a text that does not parse, showing it with a caret, for an unknown name or function, and
/// for a parameter that is missing, unknown or not finite.
class GDPA_API Activation {
 public:
  explicit Activation(std::string_view text, const std::map<std::string, double>& parameters = {});

  /// Everything that identifies the function: the text in canonical form, parameters included. Activation(text())
  /// is the same function.
  const std::string& text() const;

  /// f(s) and f'(s) in fp64: the definition, not what a kernel approximates.
  double value(double score) const;
  double derivative(double score) const;

  /// f' as an expression in s, after simplification.
  std::string derivative_text() const;

  const activation::Function& function() const { return *function_; }

 private:
  std::shared_ptr<const activation::Function> function_;
};

/// One row of the table of named activations, for listings and documentation.
struct NamedActivation {
  std::string name;
  std::string expression;
  std::string source;  ///< where the definition and its constants come from
};

/// The names that Activation accepts, aliases included, in the order of the documentation.
GDPA_API const std::vector<NamedActivation>& named_activations();

}  // namespace gdpa
