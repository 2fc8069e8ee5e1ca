// Function::facts(): what plans need to know about a function.
#include <algorithm>
#include <array>

#include "expression/function.h"
#include "expression/rewrite/forms.h"

namespace gdpa::activation {

namespace {

bool is_long_step(Operation operation, Accuracy accuracy) {
  constexpr Operation without_fast_form[] = {Operation::power, Operation::expm1, Operation::log1p};
  constexpr Operation with_fast_form[] = {Operation::erf, Operation::softplus, Operation::sin, Operation::cos};
  return std::ranges::count(without_fast_form, operation) > 0 ||
         (accuracy == Accuracy::exact && std::ranges::count(with_fast_form, operation) > 0);
}

bool has_long_steps(const Program& program, Accuracy accuracy) {
  return std::ranges::any_of(program.steps, [&](const Step& step) { return is_long_step(step.operation, accuracy); });
}

/// Whether a function of the list, or the only function, has bounds that only infinite scores need.
bool bounds_scores_of(const Function& function) {
  for (std::size_t head = 0; head < function.functions(); ++head) {
    const Function& of_head = function.functions() == 1 ? function : function.of_head(static_cast<int64_t>(head));
    const Function& one = of_head.of_sum() == nullptr ? of_head : *of_head.of_sum();
    if (one.value_of_finite().steps.size() < one.value().steps.size()) return true;
  }
  return false;
}

FunctionFacts facts_of(const Function& function) {
  const std::vector<Input>& inputs = function.inputs();
  const Program& all = function.value_and_derivative();
  FunctionFacts facts;
  for (const Input& input : inputs) {
    if (input.kind == Input::Kind::number) facts.reads_numbers = true;
    if (input.kind != Input::Kind::read) continue;
    const Dependence position = dependence_of(input, inputs);
    ++facts.reads;
    facts.reads_of_keys += position == Dependence::key ? 1 : 0;
    facts.reads_of_differences += position == Dependence::difference ? 1 : 0;
  }
  facts.reads_only_numbers =
      std::ranges::all_of(inputs, [](const Input& input) { return input.kind == Input::Kind::number; });
  facts.reads_query_position =
      std::ranges::any_of(std::array{Index::batch, Index::query, Index::length_q, Index::first_row_q},
                          [&](Index index) { return reads_index(all, inputs, index); });
  facts.bounds_scores = bounds_scores_of(function);
  const bool depends_on_inputs = !inputs.empty() && function.of_sum() == nullptr;
  facts.has_removable_guards = function.has_guards() && (!depends_on_inputs || function.functions() > 1);
  facts.degree = degree_of(function.value());
  facts.has_long_exact_steps = has_long_steps(all, Accuracy::exact);
  facts.has_long_fast_steps = has_long_steps(all, Accuracy::fast);
  return facts;
}

}  // namespace

const FunctionFacts& Function::facts() const {
  std::call_once(facts_once_, [&] { facts_ = facts_of(*this); });
  return facts_;
}

}  // namespace gdpa::activation
