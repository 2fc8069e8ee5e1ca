// Parameters of the call: functions whose numbers are passed with each call, their derivatives with respect to the
// score and to the parameters, and the checks of the tensors with the numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "expression/function.h"
#include "expression/lower.h"
#include "expression/rewrite/forms.h"
#include "gdpa/gdpa.h"

namespace gdpa {
namespace {

using Names = std::vector<std::string>;

struct Known {
  std::string text;
  Names names;
  std::function<double(double s, double a, double b)> f;
};

const std::vector<Known>& known() {
  static const std::vector<Known> functions = {
      {"a * s * sigmoid(b * s)",
       {"a", "b"},
       [](double s, double a, double b) { return a * s / (1 + std::exp(-b * s)); }},
      {"a * s * sigmoid(b * s)",
       {"b", "a"},
       [](double s, double b, double a) { return a * s / (1 + std::exp(-b * s)); }},
      {"tanh(a * s) + b * s^3",
       {"a", "b"},
       [](double s, double a, double b) { return std::tanh(a * s) + b * s * s * s; }},
      {"gelu(a * s + b)",
       {"a", "b"},
       [](double s, double a, double b) { return (a * s + b) * 0.5 * std::erfc(-(a * s + b) * std::sqrt(0.5)); }},
      {"a^2 * s + b", {"a", "b"}, [](double s, double a, double b) { return a * a * s + b; }},
      {"gelu(s + b * s)",
       {Activation::score_factor, "b"},
       [](double s, double c, double b) {
         const double x = c * s + b * c * s;
         return x * 0.5 * std::erfc(-x * std::sqrt(0.5));
       }},
      {"exp(-a * s * s) / (1 + b * b)",
       {"a", "b"},
       [](double s, double a, double b) { return std::exp(-a * s * s) / (1 + b * b); }},
  };
  return functions;
}

TEST(ActivationParameters, ValuesAndDerivativesFollowTheFormula) {
  constexpr double step = 1e-5;
  for (const Known& one : known()) {
    const Activation activation(one.text, {}, one.names);
    EXPECT_EQ(activation.parameters(), one.names);
    const Activation by_first = activation.parameter_derivative(one.names[0]);
    const Activation by_second = activation.parameter_derivative(one.names[1]);
    for (double s = -3; s <= 3; s += 0.37) {
      for (const double a : {0.3, 1.7}) {
        for (const double b : {-0.8, 1.2}) {
          SCOPED_TRACE(testing::Message() << one.text << " at s = " << s << ", " << a << ", " << b);
          EXPECT_NEAR(activation.value(s, {a, b}), one.f(s, a, b), 1e-12);
          const auto slope = [&](double ds, double da, double db) {
            return (one.f(s + ds, a + da, b + db) - one.f(s - ds, a - da, b - db)) / (2 * step);
          };
          EXPECT_NEAR(activation.derivative(s, {a, b}), slope(step, 0, 0), 1e-7);
          EXPECT_NEAR(by_first.value(s, {a, b}), slope(0, step, 0), 1e-7);
          EXPECT_NEAR(by_second.value(s, {a, b}), slope(0, 0, step), 1e-7);
        }
      }
    }
  }
}

TEST(ActivationParameters, TheFactorOfTheScoreIsPartOfAFunctionByNameAndOfEachFunctionOfAList) {
  const Names factor = {Activation::score_factor};
  EXPECT_DOUBLE_EQ(Activation("tanh", {}, factor).value(0.5, {3}), std::tanh(1.5));
  const Activation list("tanh; s; a with a = 2", {}, factor);
  EXPECT_EQ(list.function().functions(), 3U);
  EXPECT_THROW(Activation("exp2(-h)", {}, factor), Error);
  EXPECT_NE(Activation("tanh", {}, factor).function().identity(), Activation("tanh").function().identity());
}

TEST(ActivationParameters, GuardsStayForEveryNumber) {
  constexpr double infinity = INFINITY;
  for (const char* const text : {"silu(a * s)", "gelu(a * s)", "gelu_tanh(a * s)", "a * fast_gelu(s)"}) {
    const Activation activation(text, {}, {"a"});
    for (const double a : {-2.0, -0.1, 0.1, 2.0}) {
      for (const double s : {-infinity, -1e30, -200.0, 200.0, 1e30, infinity}) {
        SCOPED_TRACE(testing::Message() << text << " at " << s << ", a = " << a);
        EXPECT_FALSE(std::isnan(activation.value(s, {a})));
        EXPECT_FALSE(std::isnan(activation.derivative(s, {a})));
      }
    }
  }
}

TEST(ActivationParameters, NoProofHoldsForAFunctionThatDependsOnNumbersOfTheCall) {
  // With a = 0 this is the identity, which tolerates a rounded query. With a = 1 it does not.
  const Activation activation("s * exp(-a * s * s)", {}, {"a"});
  EXPECT_FALSE(activation::tolerates_rounded_query(activation.function().value()));
  EXPECT_TRUE(activation::tolerates_rounded_query(Activation("s").function().value()));
}

TEST(ActivationParameters, TheIdentityHasTheNamesBecauseTheyAreIndices) {
  const Activation ab("a * b^2 * s", {}, {"a", "b"}), ba("a * b^2 * s", {}, {"b", "a"});
  EXPECT_NE(ab.function().identity(), ba.function().identity());
  EXPECT_NE(ab.value(1, {2, 3}), ba.value(1, {2, 3}));
  EXPECT_EQ(&ab.function(), &Activation("a * b^2 * s", {}, {"a", "b"}).function());
  EXPECT_EQ(Activation("a * s with a = 2").value(3), 6);  // the same text with a number
  EXPECT_EQ(Activation("a * s", {}, {"a"}).value(3, {5}), 15);
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ActivationParameters, WrongNamesAndCountsAreRefused) {
  const auto contains = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(contains(error_of([] { Activation("a * s", {}, {"b"}); }), "has no parameter \"b\""));
  EXPECT_TRUE(contains(error_of([] { Activation("a * s", {{"a", 1.0}}, {"a"}); }), "given twice"));
  EXPECT_TRUE(contains(error_of([] { Activation("a * s", {}, {"a", "a"}); }), "given twice"));
  EXPECT_TRUE(contains(error_of([] { Activation("a * s", {}, {"a"}).value(1); }), "expected 1 numbers"));
  EXPECT_TRUE(contains(error_of([] { Activation("a * s", {}, {"a"}).parameter_derivative("s"); }), "got \"s\""));
}

/// A call on the CPU: one sequence of three rows, two heads, head_dim 1, so that O is a short sum.
struct Call {
  std::vector<float> rows = {0.5f, -1.0f, 2.0f, 0.25f, -0.75f, 1.5f};
  std::vector<float> output = std::vector<float>(6);
  Attention attention;

  Call() {
    const TensorView view = TensorView::contiguous(rows.data(), DType::float32, {3, 2, 1});
    attention.query = attention.key = attention.value = view;
    attention.scale = 1.0;
  }
  std::vector<float> run() {
    forward(attention, MutableTensorView::contiguous(output.data(), DType::float32, {3, 2, 1}));
    return output;
  }
};

TEST(ActivationParameters, EachQueryHeadHasItsNumber) {
  const std::vector<double> numbers = {2.0, 99.0, -3.0};
  Call call;
  call.attention.activation = Activation("a * s", {}, {"a"});
  TensorView every_second = TensorView::contiguous(numbers.data(), DType::float64, {2});
  every_second.strides[0] = 2;
  call.attention.parameters = {{"a", every_second}};
  const std::vector<float> output = call.run();
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t h = 0; h < 2; ++h) {
      double sum = 0;
      for (std::size_t j = 0; j < 3; ++j) {
        sum += numbers[h * 2] * static_cast<double>(call.rows[i * 2 + h]) * std::pow(call.rows[j * 2 + h], 2);
      }
      EXPECT_NEAR(output[i * 2 + h], sum, 1e-5);
    }
  }
}

TEST(ActivationParameters, WrongTensorsAreRefused) {
  const std::vector<float> numbers = {1.0f, 2.0f, 3.0f};
  const auto view = [&](DType dtype, std::initializer_list<int64_t> sizes, Device device = {}) {
    return TensorView::contiguous(numbers.data(), dtype, sizes, device);
  };
  const auto message = [&](const std::vector<Parameter>& parameters) {
    Call call;
    call.attention.activation = Activation("a * s + b", {}, {"a", "b"});
    call.attention.parameters = parameters;
    return error_of([&] { call.run(); });
  };
  const Parameter a{"a", view(DType::float32, {})}, b{"b", view(DType::float32, {2})};
  const std::vector<std::pair<std::vector<Parameter>, std::string>> cases = {
      {{a, b}, "no error"},
      {{a}, "parameters: expected a tensor for each parameter of the call (a, b), got 1"},
      {{a, b, {"c", a.value}}, "parameter c: expected a parameter of the call (a, b)"},
      {{a, a}, "parameter a: expected one tensor, got two"},
      {{a, {"b", view(DType::float32, {3})}}, "parameter b: expected shape () or (2), one number for each query head"},
      {{a, {"b", view(DType::float16, {2})}}, "parameter b: expected dtype float32 or float64, got float16"},
      {{a, {"b", view(DType::float32, {2}, {DeviceKind::cuda, 0})}}, "parameter b: expected device cpu"},
      {{a, {"b", TensorView::contiguous(nullptr, DType::float32, {2})}}, "parameter b: expected a pointer"},
  };
  for (const auto& [parameters, expected] : cases) {
    const std::string came = message(parameters);
    EXPECT_EQ(came.substr(0, expected.size()), expected) << came;
  }
}

TEST(ActivationParameters, AnOutputMustNotOverlapTheNumbers) {
  Call call;
  call.attention.activation = Activation("a * s", {}, {"a"});
  call.attention.parameters = {{"a", TensorView::contiguous(call.output.data(), DType::float32, {2})}};
  EXPECT_NE(error_of([&] { call.run(); }).find("expected memory of its own"), std::string::npos);
}

}  // namespace
}  // namespace gdpa
