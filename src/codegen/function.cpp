// See function.h.
#include "codegen/function.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "codegen/fast.h"
#include "codegen/inputs_printer.h"
#include "codegen/program_printer.h"
#include "expression/function.h"
#include "expression/rewrite/forms.h"
#include "expression/rewrite/prove.h"

namespace gdpa::activation {

namespace {

/// Removes a final max(x, 0) from the program, because the rounding to 16 bits can clamp at zero without cost. Returns
/// whether the program ended in it.
bool take_clamp_at_zero(Program& program) {
  const std::size_t last = program.steps.size() - 1;
  const Step end = program.steps[last];
  if (program.results[0] != last || end.operation != Operation::maximum) return false;
  const auto is_zero = [&](std::uint16_t step) { return program.steps[step].is_number(0); };
  if (!is_zero(end.a) && !is_zero(end.b)) return false;
  program.results[0] = is_zero(end.a) ? end.b : end.a;
  program.steps.pop_back();
  return true;
}

constexpr Range everything = {-infinity, infinity};

/// The form of f in a forward kernel.
struct Forward {
  FactoredProgram value_of_finite;
  Range scores;  ///< value(x) is value_of_finite of x clamped to this range
  bool clamps_at_zero;
};

Forward forward_of(const Function& function, FactoredProgram value, Range scores, ForwardForm form) {
  if (!form.scales_scores) {
    // Unscaled scores: value(k s) = k^degree value(s).
    value.value_factor *= std::pow(std::exchange(value.score_factor, 1), function.facts().degree.value());
  }
  const bool clamps_at_zero = !form.is_of_list && take_clamp_at_zero(value.program);
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

/// Returns the expressions of the numbers of a head, one for each tensor of the call, and with `takes_scale` the scale;
/// none if the function reads no such number.
std::vector<std::string> numbers_of_head(const Function& function, bool takes_scale = false) {
  std::vector<std::string> numbers(function.parameters().size(), "0.0f");
  if (takes_scale) numbers.emplace_back("static_cast<float>(params.scale)");
  bool has_numbers = takes_scale;
  for (const Input& input : function.inputs()) {
    if (input.kind != Input::Kind::number) continue;
    has_numbers = true;
    numbers[input.tensor] = fmt::format("gdpa::number_of_head(params.parameters[{}], head)", input.tensor);
  }
  return has_numbers ? numbers : std::vector<std::string>();
}

/// Returns the members of a struct that hold the numbers of the tensors that are read without an index.
std::string parameters_of(std::string_view name, const Function& function, bool takes_scale) {
  const std::vector<std::string> numbers = numbers_of_head(function, takes_scale);
  if (numbers.empty())
    return fmt::format("  static __device__ {} of(const gdpa::Params&, int) {{ return {{}}; }}\n\n", name);
  return fmt::format(
      "  float parameters[{}];\n\n"
      "  static __device__ __forceinline__ {} of(const gdpa::Params& params, int head) {{ return {{{{{}}}}}; }}\n\n",
      numbers.size(), name, fmt::join(numbers, ", "));
}

/// f as a function of one number: f itself, or g if f(s) = g(s + e).
const Function& of_one_number(const Function& function) {
  return function.of_sum() == nullptr ? function : *function.of_sum();
}

/// Returns the member shift() of a struct, which computes e of f(s) = g(s + e); nothing for another function.
std::string shift_of(const Function& function, Accuracy accuracy) {
  if (function.of_sum() == nullptr) return "";
  const RealPrinter shift(function.shift(), function.inputs(), accuracy);
  return member("float shift(const InputValues& in) const",
                fmt::format("{}    return {};\n", shift.statements(), shift.result(0))) +
         "\n";
}

/// Returns the statement that adds the shift to the argument of a function.
std::string add_shift(const Function& function, double score_factor) {
  if (function.of_sum() == nullptr) return "";
  return score_factor == 1 ? "    x += shift(in);\n" : fmt::format("    x += {} * shift(in);\n", literal(score_factor));
}

/// The text of a struct, and some of its members.
struct Struct {
  std::string text;
  bool bounds_scores = false;
  bool multiplies_query = false;
};

/// Returns the inputs that are numbers of the head, if a kernel may take them as factors. The epilogue has no other
/// inputs.
HeadInputs head_inputs_of(const Function& function, Accuracy accuracy, ForwardForm form) {
  HeadInputs head;
  const std::vector<Input>& inputs = function.inputs();
  if (accuracy == Accuracy::exact || form.is_of_list || !form.scales_scores) return head;
  head.are_of_head.resize(inputs.size() + 2);
  head.scale = inputs.size();
  head.gradient = inputs.size() + 1;
  for (const std::size_t input : inputs_of(function.value_and_derivative())) {
    head.are_of_head[input] = inputs[input].kind == Input::Kind::number;
  }
  return head;
}

/// Returns the member visit().
std::string visit_member(std::string_view statements) {
  return "  template <class Body>\n" + member("void visit(Body body) const", statements) + "\n";
}

/// Returns the members of a struct without a list that a kernel reads in the same way as the members of a list.
std::string members_of_head(double score_factor) {
  return fmt::format("  static constexpr float score_factor = {};\n\n", literal(score_factor)) +
         visit_member("    body(*this);\n");
}

/// Returns the member value(), or value_of_finite().
std::string value_member(std::string_view name, const std::string& statements) {
  return member(fmt::format("float {}(float x, const InputValues& in) const", name), statements);
}

/// Returns the member value_and_derivative().
std::string derivative_member(const std::string& statements) {
  return member("void value_and_derivative(float x, const InputValues& in, float& f, float& derivative) const",
                statements);
}

/// Returns multiplies_query and query_factor_of() for a function without a list. The factor is scale * score_factor, or
/// `factor` if it depends on numbers of the head.
std::string members_of_query(std::string_view name, const Function& function, bool multiplies_query,
                             const std::optional<QueryFactor>& factor) {
  const std::string is_multiplied = fmt::format("  static constexpr bool multiplies_query = {};\n", multiplies_query);
  constexpr std::string_view member =
      "float query_factor_of([[maybe_unused]] const gdpa::Params& params, "
      "[[maybe_unused]] int head, [[maybe_unused]] float scale)";
  if (!factor) {
    return fmt::format("{}  static __device__ {} {{ return {}; }}\n\n", is_multiplied, member,
                       multiplies_query ? "scale * score_factor" : "1.0f");
  }
  const RealPrinter printed(factor->factor, function.inputs(), Accuracy::fast, function.parameters().size());
  return fmt::format(
      "{}"
      "  static __device__ __forceinline__ {} {{\n"
      "    const {} function = of(params, head);\n"
      "    const auto& parameters = function.parameters;\n"
      "{}"
      "    return {};\n"
      "  }}\n\n",
      is_multiplied, member, name, printed.statements(),
      factor->degree == 0 ? printed.result(0) : fmt::format("gdpa::fast::moderate({}, scale)", printed.result(0)));
}

/// A factor of a head: `number` times the result of the program, if it has one.
struct HeadFactor {
  std::string statements;
  std::string product;
};

HeadFactor head_factor_of(const Function& function, double number, const Program& program) {
  if (program.steps.empty()) return {"", literal(number)};
  const RealPrinter factor(program, function.inputs(), Accuracy::fast, function.parameters().size());
  return {factor.statements(),
          number == 1 ? factor.result(0) : fmt::format("{} * {}", literal(number), factor.result(0))};
}

/// Returns the member value_factor_of(), which may depend on numbers of the head. If g has degree 1 (QueryFactor), P
/// contains the factor of Q, and value_factor_of() divides by it.
std::string value_factor_of_head(std::string_view name, const Function& function, const FactoredProgram& value,
                                 const std::optional<QueryFactor>& query) {
  // Reduced by the possible roundings of x and of the output, so that the largest score does not overflow.
  const double reduction = value.score_factor == 1 || value.value_factor == 1 ? 1 : 1 - 0x1p-22;
  const HeadFactor factor = head_factor_of(function, value.value_factor * reduction, value.head_factor);
  const bool divides = query && query->degree == 1;
  if (value.head_factor.steps.empty() && !divides) {
    return fmt::format(
        "  static __device__ constexpr float value_factor_of(const gdpa::Params&, int) {{ return {}; }}\n\n",
        factor.product);
  }
  return fmt::format(
      "  static __device__ __forceinline__ float value_factor_of(const gdpa::Params& params, int head) {{\n"
      "    const {} function = of(params, head);\n"
      "    [[maybe_unused]] const auto& parameters = function.parameters;\n"
      "{}"
      "    return {}{};\n"
      "  }}\n\n",
      name, factor.statements, factor.product,
      divides ? " / query_factor_of(params, head, static_cast<float>(params.scale))" : "");
}

/// Returns the begin of a struct of forward.
std::string begin_forward(std::string_view name, bool scales_scores, bool clamps_at_zero, bool bounds_scores) {
  return fmt::format(
      "struct {} {{\n"
      "  static constexpr bool scales_scores = {};\n"
      "  static constexpr bool clamps_at_zero = {};\n"
      "  static constexpr bool bounds_scores = {};\n",
      name, scales_scores, clamps_at_zero, bounds_scores);
}

Struct forward_struct(std::string_view name, const Function& all, Accuracy accuracy, ForwardForm form) {
  const Function& function = of_one_number(all);
  const ValueFactor kind = form.has_fp16_p ? ValueFactor::suits_fp16 : ValueFactor::suits_bfloat16;
  const HeadInputs head = head_inputs_of(function, accuracy, form);
  const auto value_with = [&](const Program& value) -> FactoredProgram {
    if (accuracy == Accuracy::exact) return {1, 1, value};
    return rewrite_fast(value, function.value_and_derivative(), kind, ValueFactor::is_one, head).value;
  };
  Forward forward = forward_of(function, value_with(function.value_of_finite()), function.finite_scores(), form);
  // If fp32 overflows at scores where f is not yet constant, as in s^4 sigmoid(s), the bounds are not moved.
  if (!is_level_in_fp32(forward.value_of_finite.program, forward.scores)) {
    forward = forward_of(function, value_with(function.value()), everything, form);
  }
  FactoredProgram& finite = forward.value_of_finite;
  const std::string x = bounded(forward.scores);
  const bool bounds_scores = x != "x", scales_scores = form.scales_scores && !finite.takes_scale;
  std::optional<QueryFactor> factor;
  bool multiplies_query = false;
  if (form.may_multiply_query && scales_scores) {
    multiplies_query = tolerates_rounded_query(of_one_number(all).value());
  } else if (form.may_multiply_query && finite.takes_scale && !bounds_scores && !forward.clamps_at_zero) {
    factor = query_factor(finite.program, head);
    if (factor && !tolerates_rounded_query(with_ones(function.value()))) factor.reset();
    if (factor) finite.program = factor->function;
    multiplies_query = factor.has_value();
  }
  const RealPrinter value(finite.program, function.inputs(), accuracy, all.parameters().size());
  const std::string shift = add_shift(all, finite.score_factor);
  std::string guarded = fmt::format("    return value_of_finite({}, in);\n", x);
  if (!shift.empty() && bounds_scores) {
    guarded = fmt::format("{}    x = {};\n{}    return {};\n", shift, x, value.statements(), value.result(0));
  }
  return {begin_forward(name, scales_scores, forward.clamps_at_zero, bounds_scores) +
              members_of_head(finite.score_factor) + members_of_query(name, all, multiplies_query, factor) +
              parameters_of(name, all, finite.takes_scale) + value_factor_of_head(name, all, finite, factor) +
              shift_of(all, accuracy) +
              value_member("value_of_finite",
                           fmt::format("{}{}    return {};\n", shift, value.statements(), value.result(0))) +
              "\n" + value_member("value", guarded) + "};\n\n",
          bounds_scores, multiplies_query};
}

/// Returns a member of a struct that computes a factor of the head times a power of the scale.
std::string factor_member(std::string_view name, const Function& all, double number, const Program& program,
                          double power_of_scale) {
  auto [statements, product] = head_factor_of(all, number, program);
  const std::string scale = fmt::format("parameters[{}]", all.parameters().size());
  if (power_of_scale == 1) product += " * " + scale;
  if (power_of_scale != 0 && power_of_scale != 1) {
    product += fmt::format(" * powf({}, {})", scale, literal(power_of_scale));
  }
  return member(fmt::format("float {}() const", name), fmt::format("{}    return {};\n", statements, product)) + "\n";
}

/// The members that the structs of f and f' share. `program` has both as its first results. If it has a degree, f is
/// homogeneous, and the argument is Q K^T: f(scale s) is scale^degree f(s), and f'(scale s) is scale^(degree - 1)
/// f'(s).
std::string members_of_backward(std::string_view name, const Function& all, const FactoredProgram& program,
                                std::optional<double> degree = {}) {
  const Program of_derivative = program.other_factors.empty() ? Program{} : program.other_factors[0];
  const double factor = program.score_factor;
  const bool takes_scale = program.takes_scale || degree.has_value();
  return fmt::format(
      "  static constexpr bool scales_scores = {};\n"
      "  static constexpr bool derivative_lacks_one = {};\n"
      "{}{}{}{}",
      !takes_scale, program.lacks_one, members_of_head(degree ? 1 : factor), parameters_of(name, all, takes_scale),
      factor_member("value_factor", all, program.value_factor * (degree ? std::pow(factor, *degree) : 1),
                    program.head_factor, degree.value_or(0)),
      factor_member("derivative_factor", all, degree ? std::pow(factor, *degree - 1) : 1, of_derivative,
                    degree ? *degree - 1 : 0));
}

/// A struct of f and f', which are the results of the program.
Struct backward_struct(std::string_view name, const Function& all, Accuracy accuracy, const FactoredProgram& program,
                       ForwardForm form) {
  std::optional<double> degree;
  if (!form.scales_scores) degree = all.facts().degree;
  const RealPrinter both(program.program, of_one_number(all).inputs(), accuracy, all.parameters().size());
  return {fmt::format("struct {} {{\n", name) + members_of_backward(name, all, program, degree) +
          shift_of(all, accuracy) +
          derivative_member(fmt::format("{}{}    f = {};\n    derivative = {};\n", add_shift(all, program.score_factor),
                                        both.statements(), both.result(0), both.result(1))) +
          "};\n\n"};
}

/// The inputs of a head, and whether f' may have a factor and lack 1.
HeadInputs backward_inputs_of(const Function& function, Accuracy accuracy, ForwardForm form) {
  HeadInputs head = head_inputs_of(function, accuracy, form);
  const bool takes_factors = head.any() ? form.takes_head_factors : form.takes_constant_factors && !form.is_of_list;
  head.scale = function.inputs().size();
  head.take_factors = {takes_factors};
  head.may_lack_one = takes_factors;
  return head;
}

/// Returns a program of f, f' and other results with its factors.
FactoredProgram factored(const Function& function, const Program& program, Accuracy accuracy, ValueFactor kind,
                         const HeadInputs& head) {
  if (accuracy == Accuracy::exact) return {1, 1, program};
  return rewrite_fast(function.value(), program, ValueFactor::is_one, kind, head).value_and_derivative;
}

Struct guarded_struct(std::string_view name, const Function& all, Accuracy accuracy, ForwardForm form) {
  const Function& function = of_one_number(all);
  const HeadInputs head = backward_inputs_of(function, accuracy, form);
  const ValueFactor kind = head.may_lack_one ? ValueFactor::suits_bfloat16 : ValueFactor::is_one;
  return backward_struct(name, all, accuracy, factored(function, function.value_and_derivative(), accuracy, kind, head),
                         form);
}

Struct unguarded_struct(std::string_view name, const Function& all, Accuracy accuracy, ForwardForm form) {
  const Function& function = of_one_number(all);
  const HeadInputs head = backward_inputs_of(function, accuracy, form);
  const Program& guarded = function.value_and_derivative();
  const Program& unguarded = function.unguarded_value_and_derivative();
  // If an overflow does not make the result infinite or NaN, as in a minimum, the bounds are not removed.
  const bool is_other = function.has_guards() &&
                        is_same_where_finite(joined(function.value(), guarded, unguarded, accuracy == Accuracy::fast));
  ValueFactor kind = form.has_fp16_p ? ValueFactor::suits_fp16 : ValueFactor::suits_bfloat16;
  // The factor of dV is a constant: its sum may be over several query heads.
  if (!is_other || form.is_of_list || head.any()) kind = ValueFactor::is_one;
  return backward_struct(name, all, accuracy, factored(function, is_other ? unguarded : guarded, accuracy, kind, head),
                         form);
}

/// Returns the program with all results but the first one multiplied by an input.
Program times_gradient(Program program, std::size_t input) {
  const auto last = [&] { return static_cast<std::uint16_t>(program.steps.size() - 1); };
  program.steps.push_back({.operation = Operation::input, .number = static_cast<double>(input)});
  const std::uint16_t factor = last();
  for (std::size_t result = 1; result < program.results.size(); ++result) {
    program.steps.push_back({.operation = Operation::multiply, .a = factor, .b = program.results[result]});
    program.results[result] = last();
  }
  return program;
}

/// A struct of f, dS and the terms of the gradients of the wanted numbers of the head.
std::string gradients_struct(const Function& function, Accuracy accuracy, ForwardForm form) {
  constexpr std::string_view name = "ActivationWithGradients";
  std::vector<std::size_t> wanted;
  std::vector<std::size_t> tensors;
  for (std::size_t n = 0; n < function.inputs().size(); ++n) {
    const Input& input = function.inputs()[n];
    if (input.kind != Input::Kind::number || (form.wanted_numbers >> input.tensor & 1U) == 0) continue;
    wanted.push_back(n);
    tensors.push_back(input.tensor);
  }
  if (wanted.empty()) return "";
  HeadInputs head = head_inputs_of(function, accuracy, form);
  // The factor of dS is also one of dQ and dK. The factors of the other derivatives are multiplied by their sums.
  head.take_factors.assign(1 + wanted.size(), true);
  head.take_factors[0] = form.takes_head_factors;
  const ValueFactor kind = head.any() && form.takes_head_factors ? ValueFactor::suits_bfloat16 : ValueFactor::is_one;
  const FactoredProgram all = factored(
      function, times_gradient(function.derivatives(wanted, true), function.inputs().size() + 1), accuracy, kind, head);
  const RealPrinter results(all.program, function.inputs(), accuracy, function.parameters().size());
  std::string terms, factors;
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    terms += fmt::format("    terms[{}] = {};\n", k, results.result(2 + k));
    if (all.other_factors.empty() || all.other_factors[1 + k].steps.empty()) continue;
    const HeadFactor factor = head_factor_of(function, 1, all.other_factors[1 + k]);
    factors += fmt::format("    {{\n{}      totals[{}] *= {};\n    }}\n", factor.statements, k, factor.product);
  }
  return fmt::format(
             "struct {} {{\n"
             "  static constexpr int numbers = {};\n",
             name, wanted.size()) +
         members_of_backward(name, function, all) +
         fmt::format(
             "  static __device__ __forceinline__ int tensor_of(int number) {{\n"
             "    constexpr int tensors[] = {{{}}};\n"
             "    return tensors[number];\n"
             "  }}\n\n",
             fmt::join(tensors, ", ")) +
         member("void value_and_terms(float x, float dp, float& f, float& ds, float (&terms)[numbers]) const",
                fmt::format("{}    f = {};\n    ds = {};\n{}", results.statements(), results.result(0),
                            results.result(1), terms)) +
         "\n" + member("void multiply_by_factors([[maybe_unused]] float (&totals)[numbers]) const", factors) + "};\n\n";
}

using StructOf = Struct (*)(std::string_view name, const Function&, Accuracy, ForwardForm);

/// The structs of the different functions of a list, and which one a head has.
struct Members {
  std::vector<std::string> texts;
  std::vector<std::size_t> of_head;
  bool bounds_scores = false;
  bool multiplies_query = false;

  std::string cases_of_head(const std::function<std::string(std::size_t)>& text_of) const {
    std::string cases;
    for (std::size_t head = 0; head + 1 < of_head.size(); ++head) {
      cases += fmt::format("head == {} ? {} : ", head, text_of(of_head[head]));
    }
    return cases + text_of(of_head.back());
  }
};

/// Returns "{name}_{i}", which is the name of member i.
std::string member_name(std::string_view name, std::size_t member) { return fmt::format("{}_{}", name, member); }

Members members_of(std::string_view name, const Function& list, Accuracy accuracy, ForwardForm form,
                   StructOf struct_of) {
  form.is_of_list = true;
  Members members;
  std::vector<std::string> nameless;
  for (std::size_t head = 0; head < list.functions(); ++head) {
    const Function& function = list.of_head(static_cast<int64_t>(head));
    const std::string text = struct_of("", function, accuracy, form).text;
    const auto known = static_cast<std::size_t>(std::find(nameless.begin(), nameless.end(), text) - nameless.begin());
    members.of_head.push_back(known);
    if (known < nameless.size()) continue;
    nameless.push_back(text);
    const Struct member = struct_of(member_name(name, known), function, accuracy, form);
    members.texts.push_back(member.text);
    members.bounds_scores = members.bounds_scores || member.bounds_scores;
    members.multiplies_query = members.multiplies_query || member.multiplies_query;
  }
  return members;
}

/// Returns the members of the struct of a list that select the function of a head.
std::string members_of_list(std::string_view name, const Function& list, const Members& members) {
  const auto member_of = [&](std::size_t i) { return member_name(name, i); };
  const std::vector<std::string> numbers = numbers_of_head(list);
  std::string copies, cases;
  for (std::size_t i = 0; i < numbers.size(); ++i) copies += fmt::format("{}parameters[{}]", i > 0 ? ", " : "", i);
  if (!copies.empty()) copies = fmt::format("{{{}}}", copies);
  for (std::size_t i = 0; i < members.texts.size(); ++i) {
    const std::string label = i + 1 < members.texts.size() ? fmt::format("case {}", i) : "default";
    cases += fmt::format("      {}:\n        return body({}{{{}}});\n", label, member_of(i), copies);
  }
  const std::string declaration = numbers.empty() ? "" : fmt::format("  float parameters[{}];\n", numbers.size());
  const std::string initializer = numbers.empty() ? "" : fmt::format(", {{{}}}", fmt::join(numbers, ", "));
  return fmt::format(
             "  static constexpr float score_factor = 1.0f;\n"
             "  int member;\n"
             "{}\n"
             "  static __device__ __forceinline__ {} of(const gdpa::Params& params, int head) {{\n"
             "    return {{{}{}}};\n"
             "  }}\n\n",
             declaration, name, members.cases_of_head([](std::size_t i) { return fmt::format("{}", i); }),
             initializer) +
         visit_member(fmt::format("    switch (member) {{\n{}    }}\n", cases));
}

std::string forward_text(std::string_view name, const Function& function, Accuracy accuracy, ForwardForm form) {
  if (function.functions() == 1) return forward_struct(name, function, accuracy, form).text;
  const Members members = members_of(name, function, accuracy, form, forward_struct);
  const auto of_member = [&](std::string_view signature, std::string_view call) {
    return fmt::format(
        "  static __device__ float {} {{\n    return {};\n  }}\n\n", signature,
        members.cases_of_head([&](std::size_t i) { return fmt::format("{}::{}", member_name(name, i), call); }));
  };
  const auto value = [](std::string_view member) {
    return value_member(member,
                        fmt::format("    float result;\n"
                                    "    visit([&](const auto& f) {{ result = f.{}(x * f.score_factor, in); }});\n"
                                    "    return result;\n",
                                    member));
  };
  return fmt::format("{}", fmt::join(members.texts, "")) +
         begin_forward(name, form.scales_scores, false, members.bounds_scores) +
         fmt::format("  static constexpr bool multiplies_query = {};\n", members.multiplies_query) +
         members_of_list(name, function, members) +
         of_member("query_factor_of(const gdpa::Params& params, int head, float scale)",
                   "query_factor_of(params, head, scale)") +
         of_member("value_factor_of(const gdpa::Params& params, int head)", "value_factor_of(params, head)") +
         value("value_of_finite") + "\n" + value("value") + "};\n\n";
}

std::string backward_text(std::string_view name, const Function& function, Accuracy accuracy, ForwardForm form,
                          StructOf struct_of) {
  if (function.functions() == 1) return struct_of(name, function, accuracy, form).text;
  const Members members = members_of(name, function, accuracy, form, struct_of);
  return fmt::format(
             "{}struct {} {{\n"
             "  static constexpr bool scales_scores = true;\n"
             "  static constexpr bool derivative_lacks_one = false;\n",
             fmt::join(members.texts, ""), name) +
         members_of_list(name, function, members) + getter("float value_factor() const", "1.0f") +
         getter("float derivative_factor() const", "1.0f") + "\n" +
         derivative_member(
             "    visit([&](const auto& member) { member.value_and_derivative(x * member.score_factor, in, "
             "f, derivative); });\n") +
         "};\n\n";
}

}  // namespace

std::string cuda_source(const Function& function, Accuracy accuracy, ForwardForm form, unsigned tensor_types) {
  return fmt::format("#include \"common/elementary.cuh\"\n{}\n// {}\n{}{}{}{}{}", inputs_header(function),
                     function.text(), inputs_source(function, tensor_types),
                     forward_text("Activation", function, accuracy, form),
                     backward_text("ActivationWithDerivative", function, accuracy, form, guarded_struct),
                     backward_text("UnguardedActivationWithDerivative", function, accuracy, form, unguarded_struct),
                     gradients_struct(function, accuracy, form));
}

}  // namespace gdpa::activation
