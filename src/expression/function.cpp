// Function::make: parses a text, binds its parameters, derives and lowers it, and stores the function for later calls.
#include "expression/function.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "expression/lower.h"
#include "expression/parser.h"
#include "expression/rewrite/forms.h"
#include "expression/rewrite/guards.h"
#include "gdpa/error.h"
#include "gdpa/mask_expression.h"

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

Interned& interned(Form form) {
  static Interned functions, conditions;
  return form == Form::number ? functions : conditions;
}

/// Calls `body`, and adds the argument of the call to the message of an error.
template <class Body>
auto named(Form form, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", form == Form::number ? "activation" : "mask", error.what()));
  }
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

/// Returns the position of a parameter that the caller gives. Throws Error (value) if the expression has no such
/// parameter.
std::size_t position_of(const Parsed& parsed, const std::string& name) {
  for (const auto* const positions : {&parsed.reads, &parsed.parameters}) {
    if (const auto used = positions->find(name); used != positions->end()) return used->second;
  }
  throw Error(ErrorKind::value, fmt::format("the expression \"{}\" has no parameter \"{}\"; {}", parsed.text, name,
                                            parameters_of(parsed)));
}

std::string identity_of(std::string_view text, const std::vector<std::string>& of_call) {
  return of_call.empty() ? std::string(text) : fmt::format("{}\n{}", text, listed(of_call));
}

/// Returns the name of the factor of the score if it is one of the tensors of the call, otherwise an empty text.
std::string score_factor_in(const std::vector<std::string>& of_call) {
  return std::ranges::count(of_call, Activation::score_factor) > 0 ? Activation::score_factor : "";
}

[[noreturn]] void refuse_twice(std::string_view text, std::size_t position, const std::string& name) {
  refuse_at(text, position, fmt::format("the parameter {} is given twice", name),
            "give it in the text or as an argument, not both");
}

/// Returns the number of each parameter, from the text and from the caller, apart from the parameters of the call.
/// Throws Error (value) for a parameter that is missing, unknown, given twice or not finite.
Bindings resolve(const Parsed& parsed, std::string_view text, const Bindings& given,
                 const std::vector<std::string>& of_call) {
  Bindings bindings = parsed.bindings;
  for (const auto& [name, value] : given) {
    const std::size_t position = position_of(parsed, name);
    if (!bindings.emplace(name, value).second) refuse_twice(text, position, name);
  }
  for (auto name = of_call.begin(); name != of_call.end(); ++name) {
    const std::size_t position = position_of(parsed, *name);
    if (bindings.contains(*name) || std::find(of_call.begin(), name, *name) != name) {
      refuse_twice(text, position, *name);
    }
  }
  for (const auto& [name, position] : parsed.parameters) {
    if (std::ranges::count(of_call, name) > 0) continue;
    const auto found = bindings.find(name);
    if (found == bindings.end() && (find_index(name) || find_row(name) != nullptr)) continue;
    if (found == bindings.end()) refuse_unbound(parsed, text, position, name);
    if (!std::isfinite(found->second)) {
      refuse_at(text, position, fmt::format("the parameter {} is {}", name, found->second), "expected a finite number");
    }
  }
  for (const auto& [name, position] : parsed.reads) {
    if (bindings.contains(name)) {
      refuse_at(text, position, fmt::format("{} is a number and has no axes", name),
                fmt::format("write {} without brackets, or pass a tensor", name));
    }
    if (std::ranges::count(of_call, name) == 0) {
      refuse_at(text, position, fmt::format("no tensor is given for {}", name),
                "pass the tensor with the call, by this name");
    }
  }
  return bindings;
}

/// Whether the node is an integer for all integers that its inputs may be. The dtype of a tensor is not known here.
bool is_integer(const Tree& tree, NodeId id) {
  const Node& node = tree[id];
  const Operation operation = node.operation;
  const auto is = [&](NodeId operand) { return is_integer(tree, operand); };
  if (operation == Operation::constant) return node.number == std::floor(node.number);
  if (operation == Operation::input) return tree.input_of(node).kind != Input::Kind::number;
  if (operation == Operation::floor || operation == Operation::floor_divide || operation == Operation::sign)
    return true;
  if (operation == Operation::negate || operation == Operation::absolute) return is(node.a);
  if (operation == Operation::select) return is(node.b) && is(node.c);
  return (is_sum(operation) || is_extremum(operation) || operation == Operation::multiply) && is(node.a) && is(node.b);
}

/// Refuses a function that is not finite where it chooses -inf by positions and tensors. FlexAttention masks a score
/// with -inf, and the softmax makes it 0. f must do the same.
void check_masked_scores(Tree tree, NodeId root, const std::string& canonical) {
  constexpr double masked = -std::numeric_limits<double>::infinity();
  bool is_masked = false;
  const NodeId at_masked = tree.rewrite(root, [&](const Node& node, NodeId) {
    const bool chooses = node.operation == Operation::select &&
                         (tree.is_number(node.b, masked) || tree.is_number(node.c, masked)) &&
                         !tree.reads_score(node.a);
    is_masked = is_masked || chooses;
    return chooses ? tree.number(masked) : tree.make(node);
  });
  if (!is_masked) return;
  const Program program = lower(tree, {tree.finish(at_masked)}, canonical);
  const std::vector<double> inputs(tree.inputs().size(), 1.0);
  for (const double score : {-2.0, -0.5, 0.5, 2.0}) {
    const double value = evaluate(program, score, inputs)[0];
    if (std::isfinite(value)) continue;
    throw Error(
        ErrorKind::value,
        fmt::format("expected a number where \"{}\" chooses -inf, but f is {} there and no softmax follows; mask "
                    "the score with mask=, or choose 0",
                    canonical, value));
  }
}

/// Returns the inputs of a bound tree, with programs for the indices of the reads. Throws Error (value) for an index
/// that depends on the score or is no integer, and for too many reads.
std::vector<Input> inputs_of(const Tree& tree, const std::string& canonical) {
  std::vector<Input> inputs;
  std::size_t reads = 0;
  for (const TreeInput& of_tree : tree.inputs()) {
    Input input{of_tree.kind, of_tree.tensor, of_tree.index, {}, of_tree.row_axes};
    for (const NodeId index : of_tree.indices) {
      const auto refuse = [&](std::string_view what, std::string_view advice) {
        throw Error(ErrorKind::value,
                    fmt::format("an index of {} in \"{}\" {}; {}", of_tree.name, canonical, what, advice));
      };
      if (tree.reads_score(index)) {
        refuse("depends on the score", "use positions and tensors of the call");
      }
      if (!is_integer(tree, index)) refuse("is no integer", "round it with floor()");
      input.indices.push_back(lower(tree, {index}, canonical));
    }
    reads += input.kind == Input::Kind::read ? 1 : 0;
    inputs.push_back(std::move(input));
  }
  if (reads > most_reads) {
    throw Error(ErrorKind::value, fmt::format("expected at most {} different reads of tensors, got {}; read "
                                              "fewer elements",
                                              most_reads, reads));
  }
  return inputs;
}

}  // namespace

std::shared_ptr<const Function> Function::make(std::string_view text, const Bindings& parameters,
                                               const std::vector<std::string>& of_call, Form form) {
  const std::string of_text = of_call.empty() ? "" : identity_of(text, of_call);
  const std::string_view key = of_call.empty() ? text : std::string_view(of_text);
  if (parameters.empty()) {
    if (auto known = interned(form).find(key)) return known;
  }
  const auto made = named(form, [&] { return make_new(text, parameters, of_call, form); });
  return parameters.empty() ? interned(form).insert(std::string(key), made) : made;
}

std::shared_ptr<const Function> Function::make_new(std::string_view text, const Bindings& parameters,
                                                   const std::vector<std::string>& of_call, Form form) {
  Parsed parsed = parse(text, form, score_factor_in(of_call));
  const Bindings bindings = resolve(parsed, text, parameters, of_call);
  const std::string canonical = parsed.text + clause(bindings);
  const std::string identity = identity_of(canonical, of_call);
  if (auto known = interned(form).find(identity)) return known;
  const NodeId bound = parsed.tree.bind(parsed.root, bindings, of_call);
  if (form == Form::number) check_masked_scores(parsed.tree, bound, canonical);
  const std::shared_ptr<Function> built = build(parsed.tree, bound, canonical, of_call);
  built->functions_ = parsed.functions;
  return interned(form).insert(identity, built);
}

std::shared_ptr<Function> Function::build(Tree& tree, NodeId bound, const std::string& canonical,
                                          const std::vector<std::string>& of_call) {
  const NodeId derivative = tree.finish(differentiate(tree, bound, tree.score()));
  const NodeId value = tree.finish(bound);
  std::shared_ptr<Function> function(new Function);
  function->parameters_ = of_call;
  function->parameter_derivatives_.resize(of_call.size());
  function->text_ = canonical;
  function->identity_ = identity_of(canonical, of_call);
  function->derivative_text_ = to_text(tree, derivative);
  const NodeId guarded = without_idle_guards(tree, value);
  const Unguarded unguarded = without_guards_at_infinity(tree, guarded);
  function->value_ = lower(tree, {guarded}, canonical);
  function->value_of_finite_ = lower(tree, {unguarded.root}, canonical);
  function->finite_scores_ = unguarded.scores;
  function->value_and_derivative_ = lower(tree, {value, derivative}, canonical);
  function->unguarded_value_and_derivative_ =
      lower(tree, {without_guards(tree, value), without_guards(tree, derivative)}, canonical);
  function->inputs_ = inputs_of(tree, canonical);
  if (!function->inputs_.empty()) {
    function->tree_ = tree;
    function->root_ = bound;
    if (std::optional<Shift> shift = find_shift(tree, bound)) {
      function->shift_ = lower(tree, {tree.finish(shift->shift)}, canonical);
      const std::string text = to_text(shift->of_sum, shift->root);
      function->of_sum_ = build(shift->of_sum, shift->root, text, {});
    }
  }
  return function;
}

std::shared_ptr<const Function> Function::parameter_derivative(std::size_t index) const {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Function>& derivative = parameter_derivatives_.at(index);
  if (!derivative) {
    const auto is_number = [&](const Input& input) {
      return input.kind == Input::Kind::number && input.tensor == index;
    };
    const auto number = std::find_if(inputs_.begin(), inputs_.end(), is_number);
    if (number == inputs_.end()) {
      throw Error(ErrorKind::value, fmt::format("activation: expected a tensor that \"{}\" reads without an index, got "
                                                "\"{}\"; backward() computes its gradient",
                                                text_, parameters_[index]));
    }
    Tree tree = tree_;
    const NodeId variable = tree.input_node(static_cast<std::size_t>(number - inputs_.begin()));
    const NodeId root = differentiate(tree, root_, variable);
    const std::string text = to_text(tree, tree.finish(root));
    derivative = named(Form::number, [&] { return build(tree, root, text, parameters_); });
  }
  return derivative;
}

std::shared_ptr<const Function> Function::times_row_scale() const {
  std::vector<std::string> of_call = parameters_;
  of_call.emplace_back("out_scale of the row");
  const std::string canonical = fmt::format("({}) * out_scale[q_row]", text_);
  const std::string identity = identity_of(canonical, of_call);
  if (auto known = interned(Form::number).find(identity)) return known;
  Parsed parsed = parse(text_, Form::number, score_factor_in(parameters_));
  const NodeId f = parsed.tree.bind(parsed.root, parsed.bindings, parameters_);
  const NodeId root = parsed.tree.multiply(f, parsed.tree.element_of_query_row(parameters_.size(), of_call.back()));
  const std::shared_ptr<Function> built = build(parsed.tree, root, canonical, of_call);
  built->functions_ = functions_;
  return interned(Form::number).insert(identity, built);
}

bool Function::is_same_in_head() const {
  return std::all_of(inputs_.begin(), inputs_.end(), [](const Input& input) {
    return input.kind == Input::Kind::number || (input.kind == Input::Kind::index && input.index == Index::head);
  });
}

bool Function::depends_on_head() const {
  return std::ranges::any_of(inputs_of(value_), [&](std::size_t n) {
    return inputs_[n].kind == Input::Kind::index && inputs_[n].index == Index::head;
  });
}

const Function& Function::of_head(int64_t head) const {
  if (!depends_on_head()) return *this;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const Function>& function = of_heads_[head];
  if (!function) {
    Tree tree = tree_;
    const NodeId root = tree.at_head(root_, head);
    const std::string text = fmt::format("{} for head {}", text_, head);
    function = named(Form::number, [&] { return build(tree, root, text, parameters_); });
  }
  return *function;
}

Program Function::derivatives(const std::vector<std::size_t>& inputs, bool after_value) const {
  Tree tree = tree_;
  std::vector<NodeId> roots;
  if (after_value) roots = {tree.finish(root_), tree.finish(differentiate(tree, root_, tree.score()))};
  for (const std::size_t input : inputs) {
    roots.push_back(tree.finish(differentiate(tree, root_, tree.input_node(input))));
  }
  return named(Form::number, [&] { return lower(tree, roots, text_); });
}

}  // namespace gdpa::activation

namespace gdpa {

Activation::Activation(std::string_view text, const std::map<std::string, double>& parameters,
                       const std::vector<std::string>& of_call)
    : function_(activation::Function::make(text, parameters, of_call, activation::Form::number)) {}

MaskExpression::MaskExpression(std::string_view text, const std::map<std::string, double>& constants,
                               const std::vector<std::string>& tensors)
    : function_(activation::Function::make(text, constants, tensors, activation::Form::condition)) {}

const std::string& MaskExpression::text() const { return function_->text(); }

const std::vector<std::string>& MaskExpression::tensors() const { return function_->parameters(); }

const std::string& Activation::text() const { return function_->text(); }

std::string describe(std::string_view text, bool is_condition) {
  using namespace activation;
  const auto form = is_condition ? activation::Form::condition : activation::Form::number;
  const Parsed parsed = named(form, [&] { return parse(text, form); });
  std::vector<std::string> numbers, names, reads;
  for (const auto& [name, number] : parsed.bindings) {
    numbers.push_back(fmt::format(R"("{}": {})", name, shortest(number)));
  }
  for (const NameInText& one : parsed.contents.names) {
    names.push_back(fmt::format(R"(["{}", {}, {}, {}])", one.name, one.begin, one.end, one.is_whole_index));
  }
  for (const ReadInText& one : parsed.contents.reads) {
    reads.push_back(fmt::format(R"(["{}", ["{}"]])", one.tensor, fmt::join(one.indices, R"(", ")")));
  }
  return fmt::format(R"({{"functions": {}, "end": {}, "numbers": {{{}}}, "names": [{}], "reads": [{}]}})",
                     parsed.functions, parsed.contents.end, listed(numbers), listed(names), listed(reads));
}

namespace {

/// Returns the numbers of the inputs of a function that reads only numbers. Throws Error (value) unless there is one
/// number for each parameter of the call, or if the function reads a position or an element of a tensor.
std::vector<double> numbers_of_inputs(const activation::Function& function, const std::vector<double>& numbers) {
  const std::vector<std::string>& names = function.parameters();
  std::vector<double> of_inputs;
  for (const activation::Input& input : function.inputs()) {
    if (input.kind != activation::Input::Kind::number) {
      throw Error(ErrorKind::value,
                  fmt::format("activation: expected a function of the score and of numbers, got \"{}\", which reads a "
                              "position or an element of a tensor; call forward()",
                              function.text()));
    }
    if (input.tensor < numbers.size()) of_inputs.push_back(numbers[input.tensor]);
  }
  if (numbers.size() == names.size()) return of_inputs;
  throw Error(ErrorKind::value,
              fmt::format("activation: expected {} numbers for the parameters of the call{}, got {}", names.size(),
                          names.empty() ? "" : " (" + activation::listed(names) + ")", numbers.size()));
}

}  // namespace

const std::vector<std::string>& Activation::parameters() const { return function_->parameters(); }

double Activation::value(double score, const std::vector<double>& parameters) const {
  return activation::evaluate(function_->value(), score, numbers_of_inputs(*function_, parameters))[0];
}

double Activation::derivative(double score, const std::vector<double>& parameters) const {
  return activation::evaluate(function_->value_and_derivative(), score, numbers_of_inputs(*function_, parameters))[1];
}

Activation Activation::parameter_derivative(const std::string& name) const {
  const std::vector<std::string>& names = parameters();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    throw Error(ErrorKind::value,
                fmt::format("activation: expected a parameter of the call{}, got \"{}\"",
                            names.empty() ? ", but it has none" : " (" + activation::listed(names) + ")", name));
  }
  return Activation(function_->parameter_derivative(static_cast<std::size_t>(found - names.begin())));
}

std::string Activation::derivative_text() const { return function_->derivative_text(); }

}  // namespace gdpa
