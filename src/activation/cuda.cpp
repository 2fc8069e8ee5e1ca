// Prints a function as CUDA C++: one statement for each step, with the elementary functions of kernels/common.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "activation/cuda_inputs.h"
#include "activation/degree.h"
#include "activation/fast.h"
#include "activation/function.h"
#include "activation/prove.h"
#include "activation/tree.h"

namespace gdpa::activation {

namespace {

bool is_condition(Operation operation) {
  return operation == Operation::less || operation == Operation::less_equal || operation == Operation::equal;
}

class Printer {
 public:
  Printer(const Program& program, const std::vector<Input>& inputs, Accuracy accuracy)
      : program_(program), inputs_(inputs), level_(accuracy == Accuracy::fast ? "gdpa::fast::" : "gdpa::exact::") {}

  std::string statements() const {
    std::string text;
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      const Step& step = program_.steps[i];
      if (is_inline(step)) continue;
      text +=
          fmt::format("    const {} v{} = {};\n", is_condition(step.operation) ? "bool" : "float", i, expression(step));
    }
    return text;
  }

  std::string result(std::size_t index) const { return operand(program_.results[index]); }

 private:
  static bool is_inline(const Step& step) { return operand_count(step.operation) == 0; }

  std::string operand(std::uint16_t index) const {
    const Step& step = program_.steps[index];
    if (step.operation == Operation::constant) return literal(step.number);
    if (step.operation == Operation::score) return "x";
    if (step.operation == Operation::input) {
      const auto input = static_cast<std::size_t>(step.number);
      const bool is_number = inputs_[input].kind == Input::Kind::number;
      return is_number ? fmt::format("parameters[{}]", inputs_[input].tensor) : fmt::format("in.v{}", input);
    }
    return fmt::format("v{}", index);
  }

  std::string infix(const Step& step, const char* sign) const {
    return fmt::format("{} {} {}", operand(step.a), sign, operand(step.b));
  }

  std::string call(const Step& step, std::string_view name) const {
    std::string text = fmt::format("{}({}", name, operand(step.a));
    if (operand_count(step.operation) > 1) text += ", " + operand(step.b);
    return text + ")";
  }

  std::string elementary(const Step& step, std::string_view name) const {
    return call(step, fmt::format("{}{}", level_, name));
  }

  bool is_one(std::uint16_t index) const {
    const Step& step = program_.steps[index];
    return step.operation == Operation::constant && step.number == 1;
  }

  std::string expression(const Step& step) const {
    switch (step.operation) {
      case Operation::constant:
      case Operation::score:
      case Operation::input:
        break;
      case Operation::add:
        return infix(step, "+");
      case Operation::subtract:
        return infix(step, "-");
      case Operation::multiply:
        return infix(step, "*");
      case Operation::divide:
        return is_one(step.a) ? fmt::format("{}reciprocal({})", level_, operand(step.b)) : elementary(step, "divide");
      case Operation::floor_divide:
        return fmt::format("floorf(gdpa::exact::divide({}, {}))", operand(step.a), operand(step.b));
      case Operation::power:
        return elementary(step, "power");
      case Operation::negate:
        return fmt::format("-{}", operand(step.a));
      case Operation::absolute:
        return call(step, "fabsf");
      case Operation::sign:
        return call(step, "gdpa::sign");
      case Operation::floor:
        return call(step, "floorf");
      case Operation::sqrt:
        return elementary(step, "sqrt");
      case Operation::rsqrt:
        return elementary(step, "rsqrt");
      case Operation::exp:
        return elementary(step, "exp");
      case Operation::exp2:
        return elementary(step, "exp2");
      case Operation::expm1:
        return elementary(step, "expm1");
      case Operation::log:
        return elementary(step, "log");
      case Operation::log2:
        return elementary(step, "log2");
      case Operation::log1p:
        return elementary(step, "log1p");
      case Operation::tanh:
        return elementary(step, "tanh");
      case Operation::sigmoid:
        return elementary(step, "sigmoid");
      case Operation::erf:
        return elementary(step, "erf");
      case Operation::softplus:
        return elementary(step, "softplus");
      case Operation::sin:
        return elementary(step, "sin");
      case Operation::cos:
        return elementary(step, "cos");
      case Operation::minimum:
        return call(step, "gdpa::minimum");
      case Operation::maximum:
        return call(step, "gdpa::maximum");
      case Operation::less:
        return infix(step, "<");
      case Operation::less_equal:
        return infix(step, "<=");
      case Operation::equal:
        return infix(step, "==");
      case Operation::select:
        return fmt::format("{} ? {} : {}", operand(step.a), operand(step.b), operand(step.c));
    }
    return "";
  }

  const Program& program_;
  const std::vector<Input>& inputs_;
  std::string level_;
};

}  // namespace

std::string printed_statements(const Program& program, const std::vector<Input>& inputs, Accuracy accuracy) {
  return Printer(program, inputs, accuracy).statements();
}

std::string printed_result(const Program& program, const std::vector<Input>& inputs, std::size_t result) {
  return Printer(program, inputs, Accuracy::exact).result(result);
}

namespace {

/// Removes a final max(x, 0) from the program, because the rounding to 16 bits can clamp at zero without cost. Returns
/// whether the program ended in it.
bool take_clamp_at_zero(Program& program) {
  const std::size_t last = program.steps.size() - 1;
  const Step end = program.steps[last];
  if (program.results[0] != last || end.operation != Operation::maximum) return false;
  const auto is_zero = [&](std::uint16_t index) {
    return program.steps[index].operation == Operation::constant && program.steps[index].number == 0;
  };
  if (!is_zero(end.a) && !is_zero(end.b)) return false;
  program.results[0] = is_zero(end.a) ? end.b : end.a;
  program.steps.pop_back();
  return true;
}

/// Moves score_factor into value_factor, for unscaled scores: value(k s) = k^degree value(s).
void take_score_factor_out(FactoredProgram& value, double degree) {
  value.value_factor *= std::pow(value.score_factor, degree);
  value.score_factor = 1;
}

constexpr Range everything = {-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};

/// The form of f in a forward kernel.
struct Forward {
  FactoredProgram value_of_finite;
  Range scores;  ///< value(x) is value_of_finite of x clamped to this range
  bool clamps_at_zero;
};

Forward forward_of(const Function& function, FactoredProgram value, Range scores, ForwardForm form) {
  if (!form.scales_scores) take_score_factor_out(value, degree_of(function.value()).value());
  const bool clamps_at_zero = take_clamp_at_zero(value.program);
  const double factor = value.score_factor;
  return {std::move(value), {factor * scores.low, factor * scores.high}, clamps_at_zero};
}

/// Returns the text of x clamped to the scores.
std::string bounded(Range scores) {
  std::string x = "x";
  if (scores.low != everything.low) x = fmt::format("gdpa::maximum({}, {})", literal(scores.low), x);
  if (scores.high != everything.high) x = fmt::format("gdpa::minimum({}, {})", literal(scores.high), x);
  return x;
}

/// Returns value_factor, reduced by the possible roundings of x and of the output, so that the largest score does not
/// overflow.
double value_factor_of(const FactoredProgram& value) {
  const bool rounds_once = value.score_factor == 1 || value.value_factor == 1;
  return rounds_once ? value.value_factor : value.value_factor * (1 - 0x1p-22);
}

/// Returns the members of a struct that hold the numbers of the tensors that are read without an index.
std::string parameters_of(std::string_view name, const Function& function) {
  const std::size_t count = function.parameters().size();
  const bool has_numbers = std::any_of(function.inputs().begin(), function.inputs().end(),
                                       [](const Input& input) { return input.kind == Input::Kind::number; });
  if (!has_numbers) {
    return fmt::format("  static __device__ {} of(const gdpa::Params&, int) {{ return {{}}; }}\n\n", name);
  }
  std::string numbers;
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_number = std::any_of(function.inputs().begin(), function.inputs().end(), [i](const Input& input) {
      return input.kind == Input::Kind::number && input.tensor == i;
    });
    const std::string number = is_number ? fmt::format("gdpa::number_of_head(params.parameters[{}], head)", i) : "0.0f";
    numbers += (i > 0 ? ", " : "") + number;
  }
  return fmt::format(
      "  float parameters[{}];\n\n"
      "  static __device__ __forceinline__ {} of(const gdpa::Params& params, int head) {{ return {{{{{}}}}}; }}\n\n",
      count, name, numbers);
}

}  // namespace

std::string cuda_source(const Function& function, Accuracy accuracy, ForwardForm form, unsigned tensor_types) {
  const auto programs_with = [&](const Program& value) -> FastPrograms {
    if (accuracy == Accuracy::exact) return {{1, 1, value}, {1, 1, function.value_and_derivative()}};
    return rewrite_fast(value, function.value_and_derivative(),
                        form.has_fp16_p ? ValueFactor::suits_fp16 : ValueFactor::suits_bfloat16);
  };
  const FastPrograms programs = programs_with(function.value());
  Forward forward =
      forward_of(function, programs_with(function.value_of_finite()).value, function.finite_scores(), form);
  // If fp32 overflows at scores where f is not yet constant, as in s^4 sigmoid(s), the bounds are not moved.
  if (!is_level_in_fp32(forward.value_of_finite.program, forward.scores)) {
    forward = forward_of(function, programs.value, everything, form);
  }
  // If an overflow does not make the result infinite or NaN, as in a minimum, the bounds are not removed.
  FactoredProgram unguarded = {1, 1, function.unguarded_value_and_derivative()};
  if (accuracy == Accuracy::fast) {
    const ValueFactor kind = form.has_fp16_p ? ValueFactor::suits_fp16 : ValueFactor::suits_bfloat16;
    unguarded = rewrite_fast(function.value(), unguarded.program, kind, kind).value_and_derivative;
  }
  const bool is_other =
      unguarded.program.steps.size() < programs.value_and_derivative.program.steps.size() &&
      is_same_where_finite(joined(function.value(), function.value_and_derivative(),
                                  function.unguarded_value_and_derivative(), accuracy == Accuracy::fast));
  if (!is_other) unguarded = programs.value_and_derivative;
  const std::string x = bounded(forward.scores);
  const Printer value(forward.value_of_finite.program, function.inputs(), accuracy);
  const Printer both(programs.value_and_derivative.program, function.inputs(), accuracy);
  const Printer first(unguarded.program, function.inputs(), accuracy);
  return fmt::format(
      "#include \"common/elementary.cuh\"\n{}\n"
      "// {}\n"
      "{}"
      "struct Activation {{\n"
      "  static constexpr bool scales_scores = {};\n"
      "  static constexpr float score_factor = {};\n"
      "  static constexpr float value_factor = {};\n"
      "  static constexpr bool clamps_at_zero = {};\n"
      "  static constexpr bool bounds_scores = {};\n"
      "{}"
      "  __device__ __forceinline__ float value_of_finite(float x, const Inputs& in) const {{\n"
      "{}"
      "    return {};\n"
      "  }}\n\n"
      "  __device__ __forceinline__ float value(float x, const Inputs& in) const {{\n"
      "    return value_of_finite({}, in);\n"
      "  }}\n"
      "}};\n\n"
      "struct ActivationWithDerivative {{\n"
      "  static constexpr float score_factor = {};\n"
      "  static constexpr float value_factor = 1.0f;\n"
      "{}"
      "  __device__ __forceinline__ void value_and_derivative(float x, const Inputs& in, float& f, float& derivative) "
      "const {{\n"
      "{}"
      "    f = {};\n"
      "    derivative = {};\n"
      "  }}\n"
      "}};\n\n"
      "struct UnguardedActivationWithDerivative {{\n"
      "  static constexpr float score_factor = {};\n"
      "  static constexpr float value_factor = {};\n"
      "{}"
      "  __device__ __forceinline__ void value_and_derivative(float x, const Inputs& in, float& f, float& derivative) "
      "const {{\n"
      "{}"
      "    f = {};\n"
      "    derivative = {};\n"
      "  }}\n"
      "}};\n",
      inputs_header(function), function.text(), inputs_source(function, tensor_types), form.scales_scores,
      literal(forward.value_of_finite.score_factor), literal(value_factor_of(forward.value_of_finite)),
      forward.clamps_at_zero, x != "x", parameters_of("Activation", function), value.statements(), value.result(0), x,
      literal(programs.value_and_derivative.score_factor), parameters_of("ActivationWithDerivative", function),
      both.statements(), both.result(0), both.result(1), literal(unguarded.score_factor),
      literal(unguarded.value_factor), parameters_of("UnguardedActivationWithDerivative", function), first.statements(),
      first.result(0), first.result(1));
}

}  // namespace gdpa::activation
