// The language of scores that read positions and tensors of the call, lists of functions, and the checks of the
// tensors.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "definition/bound_tensor.h"
#include "expression/function.h"
#include "expression/lookup.h"
#include "expression/lower.h"
#include "gdpa/gdpa.h"

namespace gdpa {
namespace {

using activation::Index;
using activation::Input;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void expect_error(const std::string& part, const std::function<void()>& call) {
  const std::string error = error_of(call);
  EXPECT_NE(error.find(part), std::string::npos) << error;
}

TEST(ActivationInputs, ANameOfTheCallOrOfTheTextHidesAPosition) {
  EXPECT_EQ(Activation("a * tanh(b * s) with a = 2, b = 0.5").value(0), 0);
  EXPECT_TRUE(Activation("a * tanh(b * s) with a = 2, b = 0.5").function().inputs().empty());
  const Activation bound("s + batch", {}, {"batch"});
  ASSERT_EQ(bound.function().inputs().size(), 1U);
  EXPECT_EQ(bound.function().inputs()[0].kind, Input::Kind::number);
  const Activation position("s + batch");
  ASSERT_EQ(position.function().inputs().size(), 1U);
  EXPECT_EQ(position.function().inputs()[0].kind, Input::Kind::index);
  EXPECT_EQ(position.function().inputs()[0].index, Index::batch);
}

TEST(ActivationInputs, EqualReadsAreOneInput) {
  const Activation function("silu(s + t[head, q_idx - kv_idx]) * t[head, q_idx - kv_idx] + t[head, kv_idx - q_idx]", {},
                            {"t"});
  int reads = 0;
  for (const Input& input : function.function().inputs()) reads += input.kind == Input::Kind::read ? 1 : 0;
  EXPECT_EQ(reads, 2);
}

TEST(ActivationInputs, ALookupHasOneIndexOfTheQueryAndTheKey) {
  // The tensors w, t_q, t_k and u; the numbers of w and u are fp32.
  const auto types_of = [](NumberType times) {
    return static_cast<unsigned>(times) << 4 | static_cast<unsigned>(times) << 8;
  };
  const auto describe = [&](const std::string& index, NumberType times) -> std::string {
    const Activation text("silu(s + w[" + index + "]) + t_q[q_row] + t_k[kv_row] + u[0]", {}, {"w", "t_q", "t_k", "u"});
    const activation::Function& function = text.function();
    const std::vector<activation::Lookup> lookups = activation::lookups_of(function, types_of(times));
    const auto of = activation::lookup_difference(function, lookups, types_of(times));
    std::string result = std::to_string(lookups.size());
    if (!of) return result;
    for (const auto& [holds, name] :
         {std::pair(of->is_query_first, " query first"), std::pair(of->is_absolute, " absolute"),
          std::pair(of->fits_32_bits, " close"), std::pair(of->is_monotone, " monotone")}) {
      result += holds ? name : "";
    }
    return result;
  };
  const NumberType integers = NumberType::int64, floats = NumberType::float32;
  const std::string buckets = "head, clamp(floor(log2(1 + abs(t_q[q_row] - t_k[kv_row]))), 0, 63)";
  EXPECT_EQ(describe(buckets, integers), "1 query first absolute close monotone");
  EXPECT_EQ(describe(buckets, floats), "1 query first absolute monotone");
  EXPECT_EQ(describe("t_k[kv_row] - t_q[q_row] + 5, head", integers), "1 close monotone");
  EXPECT_EQ(describe("batch, 4 * (t_k[kv_row] - t_q[q_row])", integers), "1 monotone") << "more than 32 bits";
  EXPECT_EQ(describe("abs(t_q[q_row] - t_k[kv_row] - 3)", integers), "1 query first close") << "falls and rises";
  EXPECT_EQ(describe("min(t_q[q_row] - t_k[kv_row], len_k)", integers), "1 query first monotone")
      << "len_k is any number";
  const std::string difference = "(t_q[q_row] - t_k[kv_row])";
  EXPECT_EQ(describe("5 - " + difference, floats), "1 query first monotone") << "falls";
  EXPECT_EQ(describe("floor(" + difference + ") - floor(0.5 * " + difference + ")", floats), "1 query first");
  EXPECT_EQ(describe("t_q[q_row] * t_k[kv_row]", integers), "1") << "no difference";
  EXPECT_EQ(describe("t_q[q_row] - t_k[kv_row] + t_q[q_row]", integers), "1");
  EXPECT_EQ(describe("q_idx, t_q[q_row] - t_k[kv_row]", integers), "0") << "another index has the query";
  EXPECT_EQ(describe("head, q_idx - kv_idx", integers), "0");
  EXPECT_EQ(describe("t_q[q_row]", integers), "0");
}

TEST(ActivationInputs, InputsThatAreOnlyAddedToTheScoreLeaveAFunctionOfTheSum) {
  const auto of_sum = [](const std::string& text, const std::vector<std::string>& names) {
    const Activation function(text, {}, names);
    const activation::Function* const sum = function.function().of_sum();
    if (sum == nullptr) return std::string("none");
    EXPECT_TRUE(sum->inputs().empty()) << text;
    return sum->text();
  };
  EXPECT_EQ(of_sum("relu(s + t[q_idx])", {"t"}), "relu(s)");
  EXPECT_EQ(of_sum("exp(t[q_idx] - 2 * u[kv_idx] + s + 1)^2", {"t", "u"}), "exp(s)^2");
  EXPECT_EQ(of_sum("tanh(s - 0.1 * abs(q_idx - kv_idx))", {}), "tanh(s)");
  EXPECT_EQ(of_sum("s + t[q_idx] + sigmoid(s + t[q_idx])", {"t"}), "s + sigmoid(s)");
  EXPECT_EQ(of_sum("s * sigmoid(s + t[q_idx])", {"t"}), "none");    // s without the sum
  EXPECT_EQ(of_sum("a * relu(s + t[q_idx])", {"a", "t"}), "none");  // an input without the sum
  EXPECT_EQ(of_sum("relu(t[q_idx] - s)", {"t"}), "none");           // minus s
  EXPECT_EQ(of_sum("relu(s + t[q_idx]) + relu(s + t[kv_idx])", {"t"}), "none");
  EXPECT_EQ(of_sum("relu(a * s)", {"a"}), "none");
  EXPECT_EQ(of_sum("relu(s + 1) * head", {}), "none");
}

TEST(ActivationInputs, TheShiftOfASumIsWhatIsAddedToTheScore) {
  const Activation subtracted("silu(s + 1 - t[q_idx])", {}, {"t"});
  const std::vector<double> numbers(subtracted.function().inputs().size(), 0.75);
  EXPECT_EQ(activation::evaluate(subtracted.function().shift(), 100, numbers)[0], 0.25);
  const Activation function("silu(t[q_idx] - 2 * u[kv_idx] + s + 1)", {}, {"t", "u"});
  const activation::Function& f = function.function();
  ASSERT_NE(f.of_sum(), nullptr);
  std::vector<double> inputs(f.inputs().size());
  double shift = 1;
  for (std::size_t n = 0; n < inputs.size(); ++n) {
    if (f.inputs()[n].kind != Input::Kind::read) continue;
    inputs[n] = f.inputs()[n].tensor == 0 ? 0.75 : 0.5;
    shift += f.inputs()[n].tensor == 0 ? 0.75 : -1.0;
  }
  EXPECT_DOUBLE_EQ(activation::evaluate(f.shift(), 100, inputs)[0], shift);
  for (const double s : {-3.0, 0.0, 2.5}) {
    EXPECT_NEAR(activation::evaluate(f.value_and_derivative(), s, inputs)[1],
                activation::evaluate(f.of_sum()->value_and_derivative(), s + shift)[1], 1e-15);
  }
}

TEST(ActivationInputs, TheTextsNameTheReads) {
  const Activation function("s * t[ head,floor(q_idx/8) ]", {}, {"t"});
  EXPECT_EQ(function.text(), "s * t[head, floor(q_idx / 8)]");
  EXPECT_EQ(function.derivative_text(), "t[head, floor(q_idx / 8)]");
}

TEST(ActivationInputs, FloorOfAQuotientIsNotTheFloorOfAProduct) {
  const Activation function("s + t[floor(q_idx / 49)]", {}, {"t"});
  for (const Input& input : function.function().inputs()) {
    if (input.kind != Input::Kind::read) continue;
    for (int i = 0; i < 49 * 20; ++i) {
      const auto index = activation::evaluate(input.indices[0], 0, {static_cast<double>(i)})[0];
      EXPECT_EQ(index, i / 49) << i;  // 49 * (1 / 49) is below 1
    }
  }
}

TEST(ActivationInputs, WrongTextsAreRefusedWithAReason) {
  expect_error("no tensor is given for t", [] { Activation("s + t[q_idx]"); });
  expect_error("t is a number and has no axes", [] { Activation("s + t[q_idx] with t = 2"); });
  expect_error("depends on the score", [] { Activation("s + t[floor(s)]", {}, {"t"}); });
  expect_error("is no integer", [] { Activation("s + t[q_idx / 2]", {}, {"t"}); });
  expect_error("is no integer", [] { Activation("s + t[a]", {}, {"t", "a"}); });
  expect_error("expected \"]\"", [] { Activation("s + t[q_idx", {}, {"t"}); });
  expect_error("has 5 indices", [] { Activation("s + t[batch, head, q_idx, kv_idx, 0]", {}, {"t"}); });
  expect_error("given twice", [] { Activation("s + t[q_idx]", {}, {"t", "t"}); });
  expect_error("at most 8 different reads",
               [] { Activation("s + t[0] + t[1] + t[2] + t[3] + t[4] + t[5] + t[6] + t[7] + t[8]", {}, {"t"}); });
  expect_error("which reads a position", [] { Activation("s + q_idx").value(1); });
}

TEST(ActivationInputs, AListHasOneFunctionForEachHead) {
  const Activation list("gelu; silu; a * s with a = 3");
  EXPECT_EQ(list.text(), "gelu; silu; a * s with a = 3");
  EXPECT_EQ(list.function().functions(), 3U);
  const std::array<Activation, 3> alone = {Activation("gelu"), Activation("silu"), Activation("3 * s")};
  for (int64_t head = 0; head < 3; ++head) {
    const activation::Function& of_head = list.function().of_head(head);
    const Activation& expected = alone[static_cast<std::size_t>(head)];
    EXPECT_EQ(activation::evaluate(of_head.value(), 0.7, {0})[0], expected.value(0.7));
    EXPECT_EQ(activation::evaluate(of_head.value_and_derivative(), 0.7, {0})[1], expected.derivative(0.7));
    EXPECT_EQ(of_head.value().steps.size(), expected.function().value().steps.size()) << "no step for the choice";
  }
  EXPECT_EQ(&alone[0].function().of_head(5), &alone[0].function());
}

/// Two sequences of 3 and 2 tokens, two heads, with tensors of the call.
struct Call {
  std::array<float, 10> operand = {1, 2, -1, 0.5f, 0.1f, 1, 1, -2, 0.3f, 0.7f};
  std::array<float, 10> output = {};
  std::array<int64_t, 3> offsets = {0, 3, 5};

  Attention attention(const Activation& function, std::vector<Parameter> parameters) const {
    const TensorView view = TensorView::contiguous(operand.data(), DType::float32, {5, 2, 1});
    const TensorView cu = TensorView::contiguous(offsets.data(), DType::int64, {3});
    return {.query = view,
            .key = view,
            .value = view,
            .cu_seqlens_q = cu,
            .cu_seqlens_k = cu,
            .activation = function,
            .parameters = std::move(parameters)};
  }

  void run(const Activation& function, std::vector<Parameter> parameters) {
    forward(attention(function, std::move(parameters)),
            MutableTensorView::contiguous(output.data(), DType::float32, {5, 2, 1}));
  }
};

TEST(ActivationInputs, WrongTensorsAreRefusedBeforeAnythingRuns) {
  Call call;
  const std::array<float, 4> numbers = {1, 2, 3, 4};
  const auto view = [&](DType dtype, std::initializer_list<int64_t> sizes, Device device = {}) {
    return TensorView::contiguous(numbers.data(), dtype, sizes, device);
  };
  const Activation table("s + t[head, q_idx - kv_idx]", {}, {"t"});
  call.output.fill(7);
  expect_error("expected rank 2", [&] { call.run(table, {{"t", view(DType::float32, {4})}}); });
  expect_error("at least one element", [&] { call.run(table, {{"t", view(DType::float32, {2, 0})}}); });
  expect_error("device", [&] { call.run(table, {{"t", view(DType::float32, {2, 2}, {DeviceKind::cuda, 0})}}); });
  expect_error("a tensor for each parameter", [&] { call.run(table, {}); });
  expect_error("got two", [&] {
    call.run(table, {{"t", view(DType::float32, {2, 2})}, {"t", view(DType::float32, {2, 2})}});
  });
  const Activation index("s + t[n[q_idx]]", {}, {"t", "n"});
  expect_error("because it is an index", [&] {
    call.run(index, {{"t", view(DType::float32, {4})}, {"n", view(DType::float32, {4})}});
  });
  const Activation twice("s + t[floor(n[q_idx])] + t[n[kv_idx]]", {}, {"t", "n"});
  expect_error("because it is an index", [&] {
    call.run(twice, {{"t", view(DType::float32, {4})}, {"n", view(DType::float32, {4})}});
  });
  expect_error("2: one for each query head, got 3", [&] { call.run(Activation("gelu; silu; relu"), {}); });
  for (const float number : call.output) EXPECT_EQ(number, 7);
}

TEST(ActivationInputs, NaNInTheBiasOfOneSequenceReachesNoOtherSequence) {
  Call call;
  std::vector<float> bias(2 * 2 * 3 * 3, 0.5f);
  for (std::size_t i = 0; i < bias.size() / 2; ++i) bias[i] = NAN;  // batch entry 0
  const Activation function("silu(s + bias[batch, head, q_idx, kv_idx])", {}, {"bias"});
  call.run(function, {{"bias", TensorView::contiguous(bias.data(), DType::float32, {2, 2, 3, 3})}});
  for (std::size_t i = 0; i < 6; ++i) EXPECT_TRUE(std::isnan(call.output[i]));
  for (std::size_t i = 6; i < 10; ++i) EXPECT_TRUE(std::isfinite(call.output[i]));
  std::vector<float> gradient(bias.size(), -1);
  std::array<float, 10> grad_query = {};
  const auto of_operand = [](std::array<float, 10>& numbers) {
    return MutableTensorView::contiguous(numbers.data(), DType::float32, {5, 2, 1});
  };
  backward(call.attention(function, {{"bias", TensorView::contiguous(bias.data(), DType::float32, {2, 2, 3, 3})}}),
           TensorView::contiguous(call.operand.data(), DType::float32, {5, 2, 1}), of_operand(grad_query), {}, {},
           {{"bias", MutableTensorView::contiguous(gradient.data(), DType::float32, {2, 2, 3, 3})}});
  for (std::size_t i = 6; i < 10; ++i) EXPECT_TRUE(std::isfinite(grad_query[i]));
  for (std::size_t i = 0; i < gradient.size(); ++i) EXPECT_EQ(std::isnan(gradient[i]), i < gradient.size() / 2) << i;
}

TEST(ActivationInputs, RowsAndPositionsAreDifferentIndices) {
  Call call;
  const std::array<float, 5> tokens = {1, 2, 3, 4, 5};
  // O = sum over the keys of (t of the query + 10 t of the key) * 1.
  call.operand.fill(1);
  call.run(Activation("0 * s + t[q_row] + 10 * t[kv_row]", {}, {"t"}),
           {{"t", TensorView::contiguous(tokens.data(), DType::float32, {5})}});
  const std::array<float, 10> expected = {63, 63, 66, 66, 69, 69, 98, 98, 100, 100};
  EXPECT_EQ(call.output, expected);
  call.run(Activation("0 * s + t[clamp(q_row, 0, 9)] + 10 * t[kv_row + 0 * len_q]", {}, {"t"}),
           {{"t", TensorView::contiguous(tokens.data(), DType::float32, {5})}});
  EXPECT_EQ(call.output, expected) << "in a computed index";
  call.run(Activation("q_row + 1 + 10 * (kv_row + 1) + 0 * s"), {});
  EXPECT_EQ(call.output, expected) << "as numbers";
  // The tensor has as many elements as the operands have rows, but the index is a position.
  call.run(Activation("0 * s + t[q_idx] + 10 * t[kv_idx]", {}, {"t"}),
           {{"t", TensorView::contiguous(tokens.data(), DType::float32, {5})}});
  const std::array<float, 10> by_position = {63, 63, 66, 66, 69, 69, 32, 32, 34, 34};
  EXPECT_EQ(call.output, by_position);
}

TEST(ActivationInputs, AnAxisOfRowsHasAnElementForEachRowOrOne) {
  Call call;
  const std::array<float, 5> numbers = {1, 2, 3, 4, 5};
  const auto run = [&](int64_t size) {
    call.run(Activation("s + t[kv_row]", {}, {"t"}),
             {{"t", TensorView::contiguous(numbers.data(), DType::float32, {size})}});
  };
  run(5);
  run(1);
  expect_error(
      "parameter t: expected 5 elements or more on axis 0, one for each row of key, because its index is "
      "kv_row, got 4 with shape (4,); pass a number for each row, or index it by the position in the sequence, "
      "kv_idx",
      [&] { run(4); });
}

TEST(ActivationInputs, AChosenMinusInfinityIsRefusedUnlessFMakesItANumber) {
  const std::string reason = "mask the score with mask=, or choose 0";
  for (const char* text : {"where(kv_idx <= q_idx, silu(s), -inf)", "s + where(kv_idx <= q_idx, 0, -inf)",
                           "s * where(kv_idx < q_idx, -inf, 1)", "leaky_relu(where(kv_idx <= q_idx, s, -inf))",
                           "gelu; where(kv_idx > 3, s, -inf)"}) {
    expect_error(reason, [&] { Activation{text}; });
  }
  for (const char* text : {"silu(where(kv_idx <= q_idx, s, -inf))", "gelu(s + where(kv_idx <= q_idx, 0, -inf))",
                           "exp(where(kv_idx <= q_idx, s, -inf))", "clamp(s, -inf, 1)", "max(s, -inf)",
                           "where(s > 0, s, -inf)", "tanh(where(kv_idx <= q_idx, s, -inf))"}) {
    EXPECT_NO_THROW(Activation{text}) << text;
  }
}

TEST(ActivationInputs, NamesOfVersion01NameTheirSuccessors) {
  expect_error("write q_idx for the position of the query in its sequence", [] { Activation("s * exp(-i)"); });
  expect_error("write batch for the batch entry", [] { Activation("s * b"); });
  expect_error("write head for the query head", [] { Activation("s + t[h]", {}, {"t"}); });
  expect_error(
      "write kv_idx if the axis has the positions in a sequence, or kv_row if it has the rows of the packed "
      "operand",
      [] { Activation("s + t[head, j]", {}, {"t"}); });
  EXPECT_EQ(Activation("s * b", {{"b", 2}}).value(3), 6) << "a parameter may have the name";
}

TEST(ActivationInputs, DebugModeReportsTheFirstIndexThatDoesNotExist) {
  Call call;
  const std::array<float, 2> table = {1, 2};
  const std::vector<Parameter> parameters = {{"t", TensorView::contiguous(table.data(), DType::float32, {2})}};
  ::setenv("GDPA_CHECK_INDICES", "1", 1);
  testing::internal::CaptureStderr();
  call.run(Activation("s + t[clamp(q_idx - kv_idx, 0, 1)]", {}, {"t"}), parameters);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  call.run(Activation("s + t[q_idx - kv_idx + 1]", {}, {"t"}), parameters);
  ::unsetenv("GDPA_CHECK_INDICES");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "gdpa: index 0 of t is -1 at batch = 0, head = 0, q_idx = 0, kv_idx = 2, expected 0 to 1\n");
}

TEST(ActivationInputs, GradientsHaveTheSameBitsForAFixedNumberOfThreads) {
  constexpr int64_t rows = 400, heads = 2, width = 8, size = 16;
  std::vector<float> operand(rows * heads * width), table(heads * size), gradient(table.size()), first;
  for (std::size_t i = 0; i < operand.size(); ++i) operand[i] = std::sin(static_cast<float>(i) * 1.7f);
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = std::cos(static_cast<float>(i));
  const std::array<int64_t, 4> offsets = {0, 130, 131, rows};
  const TensorView view = TensorView::contiguous(operand.data(), DType::float32, {rows, heads, width});
  const TensorView cu = TensorView::contiguous(offsets.data(), DType::int64, {4});
  const Attention attention{.query = view,
                            .key = view,
                            .value = view,
                            .cu_seqlens_q = cu,
                            .cu_seqlens_k = cu,
                            .activation = Activation("silu(s + t[head, clamp(q_idx - kv_idx, 0, 15)])", {}, {"t"}),
                            .parameters = {{"t", TensorView::contiguous(table.data(), DType::float32, {heads, size})}},
                            .threads = 3};
  for (int run = 0; run < 100; ++run) {
    backward(attention, view, {}, {}, {},
             {{"t", MutableTensorView::contiguous(gradient.data(), DType::float32, {heads, size})}});
    if (run == 0) first = gradient;
    ASSERT_EQ(gradient, first);
  }
}

}  // namespace
}  // namespace gdpa
