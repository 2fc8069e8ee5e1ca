// See cuda_inputs.h. An index is printed with the types of C++: positions are int, a tensor of integers has its own
// type, and every other number is float. The functions of common/index.cuh keep integers exact.
#include "activation/cuda_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "activation/tree.h"
#include "definition/bound_tensor.h"

namespace gdpa::activation {
namespace {

std::string_view reader_of(NumberType type) {
  switch (type) {
    case NumberType::float32:
    case NumberType::float64:  // not on a GPU
      return "gdpa::ReadFloat32";
    case NumberType::bfloat16:
      return "gdpa::ReadBFloat16";
    case NumberType::float16:
      return "gdpa::ReadFloat16";
    case NumberType::int32:
      return "gdpa::ReadInt32";
    case NumberType::int64:
      return "gdpa::ReadInt64";
  }
  return "";
}

std::string_view position_of(Index index) {
  switch (index) {
    case Index::batch:
      return "static_cast<int>(pair.b)";
    case Index::head:
      return "pair.head";
    case Index::query:
      return "query";
    case Index::key:
      return "key";
    case Index::length_q:
      return "pair.length_q";
    case Index::length_k:
      return "pair.length_k";
  }
  return "";
}

/// Prints the program of one index.
class IndexPrinter {
 public:
  /// The variables of the program begin with `prefix`.
  IndexPrinter(const Function& function, const Program& program, std::string prefix)
      : function_(function), program_(program), prefix_(std::move(prefix)) {}

  std::string statements() const {
    std::string text;
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      const Step& step = program_.steps[i];
      if (operand_count(step.operation) == 0) continue;
      text += fmt::format("    const auto {}{} = {};\n", prefix_, i, expression(step));
    }
    return text;
  }

  std::string result() const { return operand(program_.results[0]); }

 private:
  std::string operand(std::uint16_t index) const {
    const Step& step = program_.steps[index];
    if (step.operation == Operation::constant) return number(step.number);
    if (step.operation != Operation::input) return fmt::format("{}{}", prefix_, index);
    const auto input = static_cast<std::size_t>(step.number);
    const Input& of_function = function_.inputs()[input];
    switch (of_function.kind) {
      case Input::Kind::number:
        return fmt::format("gdpa::number_of_head(params.parameters[{}], pair.head)", of_function.tensor);
      case Input::Kind::index:
        return std::string(position_of(of_function.index));
      case Input::Kind::read:
        return fmt::format("r{}", input);
    }
    return "";
  }

  /// An integer where it is one, of the smallest type.
  static std::string number(double value) {
    if (value != std::floor(value) || std::fabs(value) >= 0x1p62) return literal(value);
    const auto whole = static_cast<long long>(value);
    const bool is_int = std::fabs(value) < 0x1p31;
    return fmt::format("({}{})", whole, is_int ? "" : "ll");
  }

  std::string call(const Step& step, std::string_view name) const {
    const int operands = operand_count(step.operation);
    return operands == 1 ? fmt::format("{}({})", name, operand(step.a))
                         : fmt::format("{}({}, {})", name, operand(step.a), operand(step.b));
  }

  std::string infix(const Step& step, std::string_view sign) const {
    return fmt::format("{} {} {}", operand(step.a), sign, operand(step.b));
  }

  std::string elementary(const Step& step, std::string_view name) const {
    const std::string a = fmt::format("static_cast<float>({})", operand(step.a));
    if (operand_count(step.operation) == 1) return fmt::format("gdpa::exact::{}({})", name, a);
    return fmt::format("gdpa::exact::{}({}, static_cast<float>({}))", name, a, operand(step.b));
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
        return elementary(step, "divide");
      case Operation::floor_divide:
        return call(step, "gdpa::index::floor_divide");
      case Operation::negate:
        return fmt::format("-{}", operand(step.a));
      case Operation::absolute:
        return call(step, "gdpa::index::absolute");
      case Operation::sign:
        return call(step, "gdpa::index::sign");
      case Operation::floor:
        if (program_.steps[step.a].operation == Operation::log2) {
          return fmt::format("gdpa::index::floor_log2({})", operand(program_.steps[step.a].a));
        }
        return call(step, "gdpa::index::floor");
      case Operation::minimum:
        return call(step, "gdpa::index::minimum");
      case Operation::maximum:
        return call(step, "gdpa::index::maximum");
      case Operation::less:
        return infix(step, "<");
      case Operation::less_equal:
        return infix(step, "<=");
      case Operation::equal:
        return infix(step, "==");
      case Operation::select:
        return fmt::format("{} ? {} : {}", operand(step.a), operand(step.b), operand(step.c));
      case Operation::power:
        return elementary(step, "power");
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
    }
    return "";
  }

  const Function& function_;
  const Program& program_;
  std::string prefix_;
};

bool is_at_position(const Input& input) { return input.kind != Input::Kind::number; }

/// The struct Inputs: its members, the statements that compute them, and their initializers. The struct that computes
/// them has the position axes of the reads as members.
struct InputsText {
  std::string members, statements, values;
  std::string axes, axis_values;
};

std::string axis_name(std::size_t input, std::size_t axis) { return fmt::format("axis{}_{}", input, axis); }

/// Appends the axes of a read whose index is a position.
void add_axes(const Function& function, std::size_t input, InputsText& text) {
  const std::vector<Input>& inputs = function.inputs();
  const Input& read = inputs[input];
  const auto reads_before = std::count_if(inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(input),
                                          [](const Input& other) { return other.kind == Input::Kind::read; });
  for (std::size_t axis = 0; axis < read.indices.size(); ++axis) {
    if (!can_be_token_axis(read, axis, inputs)) continue;
    const bool is_query = bare_index(read.indices[axis], inputs) == Index::query;
    text.axes += fmt::format("  gdpa::index::PositionAxis {};\n", axis_name(input, axis));
    text.axis_values += fmt::format(
        ",\n            gdpa::index::PositionAxis::of(params, params.{}, pair.b, params.parameters[{}], {}, {}u)",
        is_query ? "queries" : "keys", read.tensor, axis,
        1U << (static_cast<std::size_t>(reads_before) * most_axes + axis));
  }
}

/// Returns the name of the offset of a read, and appends the statements that compute it. `strides` is an expression for
/// the tensor with the strides.
std::string offset_of(const Function& function, std::size_t input, std::string_view name, const std::string& strides,
                      bool repeats, std::string& text) {
  const std::vector<Input>& inputs = function.inputs();
  const Input& read = inputs[input];
  std::string sum;
  for (std::size_t axis = 0; axis < read.indices.size(); ++axis) {
    const IndexPrinter index(function, read.indices[axis], fmt::format("x{}_{}_", input, axis));
    if (!repeats) text += index.statements();
    if (!sum.empty()) sum += " + ";
    if (can_be_token_axis(read, axis, inputs)) {
      sum += fmt::format("{}.offset({}, {}, {})", axis_name(input, axis), strides, axis, index.result());
    } else {
      sum += fmt::format("gdpa::index::offset(params.parameters[{}], {}, {}, {})", read.tensor, strides, axis,
                         index.result());
    }
  }
  text += fmt::format("    const int64_t {} = {};\n", name, sum);
  return std::string(name);
}

InputsText inputs_text(const Function& function, unsigned tensor_types) {
  const std::vector<Input>& inputs = function.inputs();
  InputsText text;
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    if (!is_at_position(inputs[n])) continue;
    text.members += fmt::format("  float v{};\n", n);
    std::string value(position_of(inputs[n].index));
    if (inputs[n].kind == Input::Kind::read) {
      add_axes(function, n, text);
      const std::string tensor = fmt::format("params.parameters[{}]", inputs[n].tensor);
      const std::string offset = offset_of(function, n, fmt::format("o{}", n), tensor, false, text.statements);
      const auto type = static_cast<NumberType>(tensor_types >> (4 * inputs[n].tensor) & 15U);
      text.statements += fmt::format("    const auto r{} = {}::at({}, {});\n", n, reader_of(type), tensor, offset);
      value = fmt::format("r{}", n);
    }
    text.values += fmt::format("{}static_cast<float>({})", text.values.empty() ? "" : ", ", value);
  }
  return text;
}

}  // namespace

std::string literal(double number) {
  const auto rounded = static_cast<float>(number);
  if (std::isinf(rounded)) return rounded > 0 ? "__int_as_float(0x7f800000)" : "__int_as_float(0xff800000)";
  const std::string digits = fmt::format("{}", rounded);
  const bool is_whole = digits.find_first_of(".e") == std::string::npos;
  return digits + (is_whole ? ".0f" : "f");
}

bool has_inputs_at(const Function& function) {
  return std::any_of(function.inputs().begin(), function.inputs().end(), is_at_position);
}

std::string inputs_header(const Function& function) {
  return fmt::format("#include \"common/no_bias.cuh\"\n{}",
                     function.inputs().empty() ? "" : "#include \"common/index.cuh\"\n");
}

std::string inputs_source(const Function& function, unsigned tensor_types) {
  if (!has_inputs_at(function)) return "using Inputs = gdpa::NoInputs;\n\n";
  const InputsText text = inputs_text(function, tensor_types);
  return fmt::format(
      "struct Inputs {{\n{}}};\n\n"
      "struct Bias {{\n"
      "  using Inputs = ::Inputs;\n"
      "  const gdpa::Params& params;\n"
      "  gdpa::SequencePair pair;\n"
      "{}\n"
      "  static __device__ __forceinline__ Bias of(const gdpa::Params& params, const gdpa::SequencePair& pair) {{\n"
      "    return {{params, pair{}}};\n"
      "  }}\n\n"
      "  __device__ __forceinline__ Inputs at(int query, int key) const {{\n"
      "{}"
      "    return {{{}}};\n"
      "  }}\n"
      "}};\n\n",
      text.members, text.axes, text.axis_values, text.statements, text.values);
}

std::string gradients_source(const Function& function, unsigned tensor_types, unsigned wanted, std::string_view sum) {
  const std::vector<Input>& inputs = function.inputs();
  std::vector<std::size_t> differentiated;
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    const bool is_wanted = inputs[n].kind != Input::Kind::index && (wanted >> inputs[n].tensor & 1U) != 0;
    if (is_wanted) differentiated.push_back(n);
  }
  const Program program = function.input_derivatives(differentiated);
  const InputsText text = inputs_text(function, tensor_types);
  std::string add, end, numbers;
  std::size_t totals = 0;
  for (std::size_t k = 0; k < differentiated.size(); ++k) {
    const std::size_t n = differentiated[k];
    const std::string tensor = fmt::format("params.grad_parameters[{}]", inputs[n].tensor);
    const std::string term = fmt::format("dp * {}", exact_result(program, inputs, k));
    if (inputs[n].kind == Input::Kind::number) {
      add += fmt::format("    totals[{}] += {};\n", totals, term);
      end += fmt::format(
          "    const float total{0} = gdpa::sum_of_warp(totals[{0}]);\n"
          "    if (threadIdx.x % 32 == 0) gdpa::add_term<{1}>({2}.data, {2}.offset_of_head(pair.head), total{0});\n",
          totals, sum, tensor);
      ++totals;
    } else {
      const std::string offset = offset_of(function, n, fmt::format("g{}", n), tensor, true, add);
      add += fmt::format("    gdpa::add_term<{}>({}.data, {}, {});\n", sum, tensor, offset, term);
    }
  }
  for (std::size_t i = 0; i < function.parameters().size(); ++i) {
    const bool is_number = std::any_of(inputs.begin(), inputs.end(), [i](const Input& input) {
      return input.kind == Input::Kind::number && input.tensor == i;
    });
    numbers += (i > 0 ? ", " : "");
    numbers += is_number ? fmt::format("gdpa::number_of_head(params.parameters[{}], pair.head)", i) : "0.0f";
  }
  return fmt::format(
      "{}#include \"common/parameter_sum.cuh\"\n\n"
      "// {}\n"
      "struct Inputs {{\n{}}};\n\n"
      "struct Gradients {{\n"
      "  const gdpa::Params& params;\n"
      "  gdpa::SequencePair pair;\n"
      "{}"
      "  float parameters[{}];\n"
      "  float totals[{}];\n\n"
      "  static __device__ __forceinline__ Gradients of(const gdpa::Params& params, const gdpa::SequencePair& pair) "
      "{{\n"
      "    return {{params, pair{}, {{{}}}, {{}}}};\n"
      "  }}\n\n"
      "  __device__ __forceinline__ void add(float x, int query, int key, float dp) {{\n"
      "{}"
      "    [[maybe_unused]] const Inputs in{{{}}};\n"
      "{}{}"
      "  }}\n\n"
      "  __device__ __forceinline__ void end() {{\n"
      "{}"
      "  }}\n"
      "}};\n",
      inputs_header(function), function.text(), text.members, text.axes, function.parameters().size(),
      std::max<std::size_t>(totals, 1), text.axis_values, numbers, text.statements, text.values,
      exact_statements(program, inputs), add, end);
}

}  // namespace gdpa::activation
