// Finds functions of a multiple of the score: see query_factor() in forms.h.
#include "expression/rewrite/forms.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gdpa::activation {

namespace {

/// How a step depends on the score s if h s is given: it does not read s (of_head), it reads s only through h s (zero),
/// it is s times such a step (one), or other. A larger one depends more on s.
enum class StepDegree : std::uint8_t { of_head, zero, one, other };

bool reads_others(const Program& program, const HeadInputs& head) {
  return std::ranges::any_of(inputs_of(program), [&](std::size_t input) {
    return input != head.scale && !(input < head.are_of_head.size() && head.are_of_head[input]);
  });
}

class Steps {
 public:
  explicit Steps(const Program& program) : program_(program) {}

  /// Finds the factor in products of the score and a step that does not read the score. Returns false if there is none,
  /// or if two products have different factors.
  bool find_factor() {
    for (std::uint16_t i = 0; i < program_.steps.size(); ++i) {
      const Step& step = program_.steps[i];
      degrees_.push_back(StepDegree::of_head);
      if (step.operation == Operation::multiply && (is_score(step.a) || is_score(step.b))) {
        const std::uint16_t other = is_score(step.a) ? step.b : step.a;
        if (degrees_[other] == StepDegree::of_head) {
          if (has_factor_ && other != factor_) return false;
          has_factor_ = true;
          factor_ = other;
          products_.push_back(i);
          degrees_[i] = StepDegree::zero;
          continue;
        }
      }
      degrees_[i] = degree_of(step);
    }
    return has_factor_;
  }

  std::uint16_t factor() const { return factor_; }
  StepDegree of_result() const { return degrees_[program_.results[0]]; }

  /// Returns the steps that `result` depends on. With `replaces`, each product of the score and the factor becomes the
  /// score.
  Program taken(std::uint16_t result, bool replaces) const {
    std::vector<bool> wanted(program_.steps.size());
    wanted[result] = true;
    const auto is_replaced = [&](std::size_t i) { return replaces && std::ranges::count(products_, i) > 0; };
    for (std::size_t i = result + 1U; i-- > 0;) {
      if (!wanted[i] || is_replaced(i)) continue;
      for (const std::uint16_t operand : operands_of(program_.steps[i])) wanted[operand] = true;
    }
    Program program;
    std::vector<std::uint16_t> moved(program_.steps.size());
    for (std::size_t i = 0; i <= result; ++i) {
      if (!wanted[i]) continue;
      Step step = program_.steps[i];
      if (is_replaced(i)) step = {.operation = Operation::score};
      step.a = moved[step.a];
      step.b = moved[step.b];
      step.c = moved[step.c];
      moved[i] = static_cast<std::uint16_t>(program.steps.size());
      program.steps.push_back(step);
    }
    program.results = {moved[result]};
    return program;
  }

 private:
  bool is_score(std::uint16_t step) const { return program_.steps[step].operation == Operation::score; }

  StepDegree degree_of(const Step& step) const {
    if (step.operation == Operation::score) return StepDegree::one;
    std::vector<StepDegree> of_operands;
    for (const std::uint16_t operand : operands_of(step)) of_operands.push_back(degrees_[operand]);
    if (of_operands.empty()) return StepDegree::of_head;
    const auto [least, most] = std::ranges::minmax(of_operands);
    if (most <= StepDegree::zero) return most;
    switch (step.operation) {
      case Operation::negate:
      case Operation::add:
      case Operation::subtract:
        return least == most ? most : StepDegree::other;
      case Operation::multiply:
        return least <= StepDegree::zero ? most : StepDegree::other;
      default:
        return StepDegree::other;
    }
  }

  const Program& program_;
  std::vector<StepDegree> degrees_;  ///< of each step
  bool has_factor_ = false;
  std::uint16_t factor_ = 0;
  std::vector<std::size_t> products_;  ///< the steps that are the product of the score and the factor
};

}  // namespace

std::optional<QueryFactor> query_factor(const Program& program, const HeadInputs& head) {
  Steps steps(program);
  if (program.results.size() != 1 || reads_others(program, head) || !steps.find_factor()) return {};
  const StepDegree degree = steps.of_result();
  if (degree != StepDegree::zero && degree != StepDegree::one) return {};
  QueryFactor result = {steps.taken(steps.factor(), false), steps.taken(program.results[0], true),
                        degree == StepDegree::one ? 1 : 0};
  if (!inputs_of(result.function).empty() || inputs_of(result.factor).empty()) return {};
  return result;
}

Program with_ones(Program program) {
  for (Step& step : program.steps) {
    if (step.is_input()) step = {.operation = Operation::constant, .number = 1};
  }
  return program;
}

}  // namespace gdpa::activation
