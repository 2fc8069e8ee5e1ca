// Function::make: parses a text, binds its parameters, derives and lowers it, and stores the function for later calls.
#include "activation/function.h"

#include <fmt/format.h>

#include <cmath>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "activation/derivative.h"
#include "activation/guards.h"
#include "activation/lexer.h"
#include "activation/lower.h"
#include "activation/parser.h"
#include "activation/text.h"
#include "gdpa/error.h"

namespace gdpa::activation {

namespace {

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};

/// The functions made so far, by text. Every call looks up its function, so a look-up takes only a shared lock and
/// allocates nothing. A full table is cleared, so that a program that makes any number of functions (a search over
/// parameters) uses bounded memory. Existing handles own their functions.
class Interned {
 public:
  std::shared_ptr<const Function> find(std::string_view text) const {
    const std::shared_lock lock(mutex_);
    const auto entry = functions_.find(text);
    return entry == functions_.end() ? nullptr : entry->second;
  }

  /// Stores the function under the text and returns it, or returns the function that another thread has stored before.
  std::shared_ptr<const Function> insert(const std::string& text, std::shared_ptr<const Function> function) {
    const std::unique_lock lock(mutex_);
    if (functions_.size() >= most) functions_.clear();
    return functions_.try_emplace(text, std::move(function)).first->second;
  }

 private:
  static constexpr std::size_t most = 1024;

  mutable std::shared_mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const Function>, TextHash, std::equal_to<>> functions_;
};

Interned& interned() {
  static Interned functions;
  return functions;
}

using Bindings = std::map<std::string, double>;

/// " with a = 2, b = 0.5"
std::string clause(const Bindings& bindings) {
  std::string text;
  for (const auto& [name, value] : bindings) {
    text += fmt::format("{}{} = {}", text.empty() ? " with " : ", ", name, shortest(value));
  }
  return text;
}

/// Returns the number of each parameter, from the text and from the caller. Throws Error (value) for a parameter that
/// is missing, unknown, given twice or not finite.
Bindings resolve(const Parsed& parsed, std::string_view text, const Bindings& given) {
  Bindings bindings = parsed.bindings;
  for (const auto& [name, value] : given) {
    const auto used = parsed.parameters.find(name);
    if (used == parsed.parameters.end()) {
      std::vector<std::string> names;
      for (const auto& entry : parsed.parameters) names.push_back(entry.first);
      throw Error(ErrorKind::value,
                  fmt::format("activation: the expression \"{}\" has no parameter \"{}\"; {}", parsed.text, name,
                              names.empty() ? "it has none" : "its parameters: " + listed(names)));
    }
    if (!bindings.emplace(name, value).second) {
      throw Error(ErrorKind::value, fault(text, used->second, fmt::format("the parameter {} is given twice", name),
                                          "give it in the text or as an argument, not both"));
    }
  }
  for (const auto& [name, position] : parsed.parameters) {
    const auto found = bindings.find(name);
    if (found == bindings.end()) {
      throw Error(ErrorKind::value, unbound_fault(text, position, name));
    }
    if (!std::isfinite(found->second)) {
      throw Error(ErrorKind::value, fault(text, position, fmt::format("the parameter {} is {}", name, found->second),
                                          "expected a finite number"));
    }
  }
  return bindings;
}

}  // namespace

std::shared_ptr<const Function> Function::make(std::string_view text, const Bindings& parameters) {
  if (parameters.empty()) {
    if (auto known = interned().find(text)) return known;
  }
  Parsed parsed = parse(text);
  const Bindings bindings = resolve(parsed, text, parameters);
  const std::string canonical = parsed.text + clause(bindings);
  auto known = interned().find(canonical);
  if (!known) known = interned().insert(canonical, build(parsed, bindings, canonical));
  return parameters.empty() ? interned().insert(std::string(text), known) : known;
}

std::shared_ptr<const Function> Function::build(Parsed& parsed, const Bindings& bindings,
                                                const std::string& canonical) {
  Tree& tree = parsed.tree;
  const NodeId bound = tree.bind(parsed.root, bindings);
  const NodeId derivative = tree.finish(differentiate(tree, bound, tree.score()));
  const NodeId value = tree.finish(bound);
  std::shared_ptr<Function> function(new Function);
  function->text_ = canonical;
  function->derivative_text_ = to_text(tree, derivative);
  const NodeId guarded = without_idle_guards(tree, value);
  const Unguarded unguarded = without_guards_at_infinity(tree, guarded);
  function->value_ = lower(tree, {guarded}, canonical);
  function->value_of_finite_ = lower(tree, {unguarded.root}, canonical);
  function->finite_scores_ = unguarded.scores;
  function->value_and_derivative_ = lower(tree, {value, derivative}, canonical);
  function->unguarded_value_and_derivative_ =
      lower(tree, {without_guards(tree, value), without_guards(tree, derivative)}, canonical);
  return function;
}

}  // namespace gdpa::activation

namespace gdpa {

Activation::Activation(std::string_view text, const std::map<std::string, double>& parameters)
    : function_(activation::Function::make(text, parameters)) {}

const std::string& Activation::text() const { return function_->text(); }

double Activation::value(double score) const { return activation::evaluate(function_->value(), score)[0]; }

double Activation::derivative(double score) const {
  return activation::evaluate(function_->value_and_derivative(), score)[1];
}

std::string Activation::derivative_text() const { return function_->derivative_text(); }

}  // namespace gdpa
