// Norms of rows through the public C++ API with device pointers and a stream: every kind, width, type and choice of
// operands and gradients against the definition in fp64. Everything is written, and nothing else is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "device.h"
#include "fmt/format.h"
#include "gdpa/error.h"
#include "gdpa/norm.h"
#include "on_device.h"
#include "strided.h"

namespace gdpa::test {
namespace {

struct Case {
  DType dtype;
  int64_t columns;
  Norm::Kind kind;
  bool has_weight = true;
  bool has_bias = false;
  bool has_gate = false;
  bool has_residual = false;
  DType weights = DType::float32;
  bool aligned = true;
  int64_t gate_heads = 1;  ///< the gate is a view of a fused projection of so many heads
};

std::string name_of(const testing::TestParamInfo<Case>& tested) {
  const Case& c = tested.param;
  return fmt::format("{}_{}_{}{}{}{}{}_{}{}", c.kind == Norm::Kind::layer ? "layer" : "rms", name(c.dtype), c.columns,
                     c.has_weight ? "_weight" : "", c.has_bias ? "_bias" : "", c.has_gate ? "_gate" : "",
                     c.has_residual ? "_residual" : "", name(c.weights), c.aligned ? "" : "_unaligned") +
         (c.gate_heads > 1 ? fmt::format("_{}_heads", c.gate_heads) : "");
}

/// The definition in fp64, row by row.
struct Exact {
  std::vector<double> y, grad_x, grad_weight, grad_bias, grad_gate;
};

Exact exact_of(const Case& c, int64_t rows, double eps, const std::vector<double>& x, const std::vector<double>& weight,
               const std::vector<double>& bias, const std::vector<double>& gate, const std::vector<double>& residual,
               const std::vector<double>& grad_y) {
  const auto columns = static_cast<std::size_t>(c.columns);
  const auto count = static_cast<double>(c.columns);
  const std::size_t size = static_cast<std::size_t>(rows) * columns;
  Exact exact{std::vector<double>(size), std::vector<double>(size), std::vector<double>(columns),
              std::vector<double>(columns), std::vector<double>(size)};
  const auto of = [](const std::vector<double>& given, std::size_t at, double otherwise) {
    return given.empty() ? otherwise : given[at];
  };
  for (std::size_t first = 0; first < size; first += columns) {
    double mean = 0, variance = 0;
    for (std::size_t i = 0; i < columns && c.kind == Norm::Kind::layer; ++i) mean += x[first + i] / count;
    for (std::size_t i = 0; i < columns; ++i) variance += std::pow(x[first + i] - mean, 2) / count;
    const double rstd = 1 / std::sqrt(variance + eps);
    double of_products = 0, of_gradients = 0;
    std::vector<double> normed(columns), g(columns);
    for (std::size_t i = 0; i < columns; ++i) {
      const std::size_t at = first + i;
      normed[i] = (x[at] - mean) * rstd;
      const double n = normed[i] * of(weight, i, 1) + of(bias, i, 0);
      exact.y[at] = n * of(gate, at, 1) + of(residual, at, 0);
      exact.grad_gate[at] = grad_y[at] * n;
      const double dn = grad_y[at] * of(gate, at, 1);
      exact.grad_weight[i] += dn * normed[i];
      exact.grad_bias[i] += dn;
      g[i] = dn * of(weight, i, 1);
      of_products += g[i] * normed[i] / count;
      of_gradients += c.kind == Norm::Kind::layer ? g[i] / count : 0;
    }
    for (std::size_t i = 0; i < columns; ++i) {
      exact.grad_x[first + i] = rstd * (g[i] - of_gradients - normed[i] * of_products);
    }
  }
  return exact;
}

void expect_near(Strided& result, const std::vector<double>& exact, DType dtype, const char* what) {
  EXPECT_TRUE(result.rest_is_poisoned()) << what;
  const std::vector<double> values = result.values();
  ASSERT_EQ(values.size(), exact.size()) << what;
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    error += std::pow(values[i] - exact[i], 2);
    norm += std::pow(exact[i], 2);
  }
  const double bound = dtype == DType::bfloat16 ? 3e-3 : dtype == DType::float16 ? 6e-4 : 2e-6;
  EXPECT_LE(std::sqrt(error), bound * std::sqrt(norm)) << what;
}

class GpuNorms : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }

  static Strided rows_of(const Case& c, int64_t rows, int64_t gap) {
    const int64_t first = c.aligned ? 0 : 1, stride = c.columns + gap * (c.aligned ? 8 : 1);
    return {c.dtype, {rows, c.columns}, {stride, 1}, first, first + std::max<int64_t>(rows, 1) * stride};
  }
  /// Of each head, the second half of its columns.
  static Strided gate_of(const Case& c, int64_t rows) {
    if (c.gate_heads == 1) return rows_of(c, rows, 0);
    const int64_t width = c.columns / c.gate_heads, stride = 2 * c.columns;
    return {c.dtype, {rows, c.gate_heads, width}, {stride, 2 * width, 1}, width, std::max<int64_t>(rows, 1) * stride};
  }
  static Strided vector_of(const Case& c) { return Strided::contiguous(c.weights, {c.columns}); }

  /// One problem. `seed` also selects the wanted gradients.
  static void check(int64_t rows, std::uint64_t seed) {
    const Case& c = GetParam();
    SCOPED_TRACE(fmt::format("{} rows, seed {}", rows, seed));
    std::mt19937_64 random(seed);
    const Gpu& gpu = Gpu::get();
    OnDevice device(gpu, seed % 2 == 0 ? 4096 : 0);
    Strided x = rows_of(c, rows, 1), gate = gate_of(c, rows), residual = rows_of(c, rows, 2);
    Strided y = rows_of(c, rows, 3), grad_y = rows_of(c, rows, 1), grad_x = rows_of(c, rows, 2);
    Strided grad_gate = gate_of(c, rows), weight = vector_of(c), bias = vector_of(c);
    Strided grad_weight = vector_of(c), grad_bias = vector_of(c);
    Strided statistics = Strided::contiguous(DType::float32, {rows, 2});
    for (Strided* const tensor : {&x, &gate, &residual, &grad_y, &weight, &bias}) tensor->fill_normal(random);
    x.for_each([&](std::byte* at) { from_double(c.dtype, to_double(c.dtype, at) * 0.5 + 1, at); });

    Norm norm{.x = device.input(x), .kind = c.kind, .eps = 1e-3, .stream = gpu.stream()};
    if (c.has_weight) norm.weight = device.input(weight);
    if (c.has_bias) norm.bias = device.input(bias);
    if (c.has_gate) norm.gate = device.input(gate);
    if (c.has_residual) norm.residual = device.input(residual);
    const MutableTensorView statistics_view = device.output(statistics);
    gdpa::norm(norm, device.output(y), statistics_view);

    const bool wants_x = seed % 3 != 1, wants_weights = seed % 3 != 2 || !c.has_gate;
    NormGradients gradients;
    if (wants_x) gradients.x = device.output(grad_x);
    if (wants_weights && c.has_weight) gradients.weight = device.output(grad_weight);
    if (wants_weights && c.has_bias) gradients.bias = device.output(grad_bias);
    if (c.has_gate) gradients.gate = device.output(grad_gate);
    const bool wants_any = wants_x || c.has_gate || (wants_weights && (c.has_weight || c.has_bias));
    const TensorView read{statistics_view.data, statistics_view.dtype, statistics_view.device,
                          statistics_view.rank, statistics_view.sizes, statistics_view.strides};
    if (seed % 2 == 0) norm.workspace = device.workspace(norm_workspace_bytes(norm, gradients));
    if (wants_any) norm_backward(norm, device.input(grad_y), read, gradients);
    device.fetch({&y, &statistics, &grad_x, &grad_weight, &grad_bias, &grad_gate});

    const auto given = [](bool is_given, Strided& tensor) {
      return is_given ? tensor.values() : std::vector<double>();
    };
    const Exact exact = exact_of(c, rows, norm.eps, x.values(), given(c.has_weight, weight), given(c.has_bias, bias),
                                 given(c.has_gate, gate), given(c.has_residual, residual), grad_y.values());
    const auto judge = [&](bool is_wanted, Strided& result, const std::vector<double>& expected, const char* what) {
      if (is_wanted) {
        expect_near(result, expected, result.dtype(), what);
      } else {
        EXPECT_TRUE(result.is_poisoned()) << what << " is not wanted, and was written";
      }
    };
    expect_near(y, exact.y, c.dtype, "y");
    judge(wants_x, grad_x, exact.grad_x, "dx");
    judge(wants_weights && c.has_weight, grad_weight, exact.grad_weight, "dweight");
    judge(wants_weights && c.has_bias, grad_bias, exact.grad_bias, "dbias");
    judge(c.has_gate, grad_gate, exact.grad_gate, "dgate");
  }
};

/// GDPA_NORM_ROWS: more rows than all CTAs of a GPU compute at once need several rounds.
TEST_P(GpuNorms, AgreeWithTheDefinition) {
  const char* const asked = std::getenv("GDPA_NORM_ROWS");
  const int64_t most = asked != nullptr ? std::atoll(asked) : 10'000;
  std::uint64_t seed = 0;
  for (const int64_t rows : {int64_t{0}, int64_t{1}, int64_t{3}, most, most + 1, most - 1}) check(rows, seed++);
}

constexpr DType bf16 = DType::bfloat16, fp16 = DType::float16, fp32 = DType::float32;
constexpr Norm::Kind layer = Norm::Kind::layer, rms = Norm::Kind::rms;

INSTANTIATE_TEST_SUITE_P(Cases, GpuNorms,
                         testing::Values(Case{bf16, 512, layer, true, true, false, false, bf16},
                                         Case{bf16, 512, rms, true, false, false, true, bf16},
                                         Case{bf16, 512, layer, true, true, true, false, fp32},
                                         Case{fp16, 64, layer, true, true, true, true, fp16},
                                         Case{fp16, 8, rms, false, false, true, false, fp16},
                                         Case{bf16, 72, rms, true, true, false, true, fp32, false},
                                         Case{bf16, 256, layer, true, true, true, false, fp32, true, 4},
                                         Case{bf16, 520, layer, false, false, false, true, bf16},
                                         Case{bf16, 1024, layer, true, true, false, false, fp32},
                                         Case{fp32, 256, layer, true, true, true, true, fp32},
                                         Case{fp32, 24, rms, true, false, false, false, fp32, false},
                                         Case{fp16, 2048, rms, true, false, true, true, fp32},
                                         Case{bf16, 4096, layer, true, true, true, true, bf16}),
                         name_of);

/// The sums of weights have one order.
TEST(GpuNorm, GradientsHaveTheSameBitsEveryTime) {
  if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  constexpr int64_t rows = 3000, columns = 64;
  const Gpu& gpu = Gpu::get();
  std::mt19937_64 random(1);
  Strided x = Strided::contiguous(fp32, {rows, columns}), grad_y = x, weight = Strided::contiguous(fp32, {columns});
  for (Strided* const tensor : {&x, &grad_y, &weight}) tensor->fill_normal(random);
  std::vector<std::vector<std::byte>> results;
  for (int i = 0; i < 2; ++i) {
    OnDevice device(gpu, 0);
    Strided y = Strided::contiguous(fp32, {rows, columns}), statistics = Strided::contiguous(fp32, {rows, 2});
    Strided gradient = Strided::contiguous(fp32, {columns});
    const Norm norm{.x = device.input(x), .weight = device.input(weight), .stream = gpu.stream()};
    const MutableTensorView written = device.output(statistics);
    gdpa::norm(norm, device.output(y), written);
    norm_backward(norm, device.input(grad_y),
                  {written.data, written.dtype, written.device, written.rank, written.sizes, written.strides},
                  {.weight = device.output(gradient)});
    device.fetch({&y, &statistics, &gradient});
    results.push_back(gradient.bytes());
  }
  EXPECT_EQ(results[0], results[1]);
}

}  // namespace
}  // namespace gdpa::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
