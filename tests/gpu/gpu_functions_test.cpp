// Compares the named functions and their derivatives on a GPU, fast and exact, with the definition in fp64, for
// millions of scores. `gpu_functions_test --table` prints the table of docs/accuracy.md.
#include <gtest/gtest.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "codegen/function.h"
#include "device.h"
#include "expression/function.h"
#include "fmt/format.h"
#include "gdpa/activation.h"
#include "gpu/driver.h"
#include "gpu/target.h"
#include "jit/images.h"

namespace gdpa::test {
namespace {

/// Every 1024th bit pattern of fp32 except NaN, a fine grid near 0, and the ends of the type.
const std::vector<float>& scores() {
  static const std::vector<float> all = [] {
    std::vector<float> result;
    constexpr std::uint64_t step = 1024, patterns = std::uint64_t{1} << 32;
    for (std::uint64_t bits = 0; bits < patterns; bits += step) {
      const auto score = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
      if (!std::isnan(score)) result.push_back(score);
    }
    constexpr int grid = 2'000'000;
    for (int i = -grid; i <= grid; ++i) result.push_back(static_cast<float>(20.0 * i / grid));
    using Limits = std::numeric_limits<float>;
    for (const float end : {3e38F, Limits::max(), Limits::min(), Limits::denorm_min(), Limits::infinity()}) {
      result.insert(result.end(), {end, -end});
    }
    return result;
  }();
  return all;
}

struct Evaluated {
  std::vector<float> alone;      ///< f, computed alone
  std::vector<float> of_finite;  ///< f, computed alone and without the bounds that only infinite scores need
  std::vector<float> value;      ///< f, computed together with f'
  std::vector<float> derivative;
};

/// f and f' of every score, computed in the same way as in the kernels.
Evaluated on_gpu(const Activation& activation, Accuracy accuracy) {
  static const jit::Images images(jit::CacheSettings::from_environment());
  const std::string source =
      activation::cuda_source(activation.function(), accuracy) +
      "extern \"C\" __global__ void evaluate(const float* scores, float* alone, float* of_finite,\n"
      "                                    float* value, float* derivative, long count) {\n"
      "  const long i = blockIdx.x * long{blockDim.x} + threadIdx.x;\n"
      "  if (i >= count) return;\n"
      "  using Forward = Activation;\n"
      "  using Backward = ActivationWithDerivative;\n"
      "  const auto finished = [](float f) {\n"
      "    return Forward::value_factor_of({}, 0) * (Forward::clamps_at_zero ? gdpa::maximum(f, 0.0f) : f);\n"
      "  };\n"
      "  alone[i] = finished(Forward{}.value(Forward::score_factor * scores[i], {}));\n"
      "  of_finite[i] = finished(Forward{}.value_of_finite(Forward::score_factor * scores[i], {}));\n"
      "  Backward{}.value_and_derivative(Backward::score_factor * scores[i], {}, value[i],\n"
      "                                 derivative[i]);\n"
      "}\n";
  const Gpu& gpu = Gpu::get();
  const gpu::Driver& driver = gpu::Driver::get();
  const std::string cubin = images.find_or_compile({source, activation.text()}, gpu::target_of(0).architecture).image;
  gpu::Module module = nullptr;
  gpu::KernelHandle kernel = nullptr;
  gpu::check(driver.module_load(&module, cubin.data()), "loading the kernel");
  gpu::check(driver.module_kernel(&kernel, module, "evaluate"), "loading the kernel");

  const auto* bytes = reinterpret_cast<const std::byte*>(scores().data());
  const std::size_t size = scores().size() * sizeof(float);
  const GuardedMemory input(gpu, {bytes, bytes + size}, 0);
  const std::vector<std::byte> poison(size, std::byte{0xff});
  GuardedMemory alone(gpu, poison, 0);
  GuardedMemory of_finite(gpu, poison, 0);
  GuardedMemory value(gpu, poison, 0);
  GuardedMemory derivative(gpu, poison, 0);
  void* addresses[] = {input.data(), alone.data(), of_finite.data(), value.data(), derivative.data()};
  auto count = static_cast<int64_t>(scores().size());
  void* parameters[] = {&addresses[0], &addresses[1], &addresses[2], &addresses[3], &addresses[4], &count};
  constexpr unsigned threads = 256;
  const auto blocks = static_cast<unsigned>((scores().size() + threads - 1) / threads);
  gpu::check(driver.launch(kernel, blocks, 1, 1, threads, 1, 1, 0, gpu.stream(), parameters, nullptr),
             "launching the kernel");
  const auto numbers = [&](GuardedMemory& memory) {
    memory.fetch();
    std::vector<float> result(scores().size());
    std::memcpy(result.data(), memory.content().data(), size);
    return result;
  };
  return {numbers(alone), numbers(of_finite), numbers(value), numbers(derivative)};
}

/// The largest errors over all scores, with the scores at which they occur.
struct Errors {
  double scaled = 0;  ///< |error| / max(1, |exact|)
  double scaled_at = 0;
  double relative = 0;  ///< |error| / |exact|, where |exact| is at least `significant`
  double relative_at = 0;
  std::string not_finite;  ///< a result that is not finite although the exact result is, or a wrong infinity

  static constexpr double significant = 0.01;

  void include(float score, float actual, double exact) {
    const auto as_float = static_cast<float>(exact);
    if (std::isinf(as_float)) {
      if (actual != as_float) not_finite = fmt::format("{} for {} at {}", actual, exact, score);
      return;
    }
    if (!std::isfinite(actual)) {
      not_finite = fmt::format("{} for {} at {}", actual, exact, score);
      return;
    }
    const double error = std::abs(static_cast<double>(actual) - exact);
    const double magnitude = std::abs(exact);
    if (error > scaled * std::max(1.0, magnitude)) {
      scaled = error / std::max(1.0, magnitude);
      scaled_at = static_cast<double>(score);
    }
    if (magnitude >= significant && error > relative * magnitude) {
      relative = error / magnitude;
      relative_at = static_cast<double>(score);
    }
  }
};

struct Measured {
  Errors value;
  Errors derivative;
};

/// f' of hardswish jumps at these scores. A rounded score may lie on either side of the jump.
bool is_at_kink(const std::string& name, float score) {
  constexpr float kink = 3;
  return name == "hardswish" && std::abs(std::abs(score) - kink) < 4 * kink * std::numeric_limits<float>::epsilon();
}

Measured measure(const std::string& name, Accuracy accuracy) {
  const Activation activation(name);
  const Evaluated evaluated = on_gpu(activation, accuracy);
  std::vector<double> exact_value(scores().size());
  std::vector<double> exact_derivative(scores().size());
  tbb::parallel_for(std::size_t{0}, scores().size(), [&](std::size_t i) {
    exact_value[i] = activation.value(static_cast<double>(scores()[i]));
    exact_derivative[i] = activation.derivative(static_cast<double>(scores()[i]));
  });
  Measured measured;
  for (std::size_t i = 0; i < scores().size(); ++i) {
    // Forward and backward use different factors of f. The same bounds apply to both.
    measured.value.include(scores()[i], evaluated.alone[i], exact_value[i]);
    measured.value.include(scores()[i], evaluated.value[i], exact_value[i]);
    if (!is_at_kink(name, scores()[i])) {
      measured.derivative.include(scores()[i], evaluated.derivative[i], exact_derivative[i]);
    }
  }
  return measured;
}

/// The names without aliases.
std::vector<std::string> function_names() {
  std::vector<std::string> names;
  for (const NamedActivation& named : named_activations()) names.push_back(named.name);
  std::vector<std::string> functions;
  for (const NamedActivation& named : named_activations()) {
    const bool is_alias =
        named.name != named.expression && std::find(names.begin(), names.end(), named.expression) != names.end();
    if (!is_alias) functions.push_back(named.name);
  }
  return functions;
}

class GpuFunctions : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }

  static void errors_are_below(Accuracy accuracy, double bound) {
    const Measured measured = measure(GetParam(), accuracy);
    EXPECT_EQ(measured.value.not_finite, "");
    EXPECT_EQ(measured.derivative.not_finite, "");
    EXPECT_LE(measured.value.scaled, bound) << "f at " << measured.value.scaled_at;
    EXPECT_LE(measured.derivative.scaled, bound) << "f' at " << measured.derivative.scaled_at;
    RecordProperty("scores", static_cast<int>(scores().size()));
  }
};

/// NVIDIA's bound of the relative error of tanh.approx, which is a quarter of a rounding of bf16.
TEST_P(GpuFunctions, FastOnesAreWithinTheHardwaresApproximation) { errors_are_below(Accuracy::fast, 0x1p-11); }
TEST_P(GpuFunctions, ExactOnesAreGoodToSomeUnitsInTheLastPlace) { errors_are_below(Accuracy::exact, 0x1p-18); }

TEST_P(GpuFunctions, OfFiniteScoresAreTheSameBitsWithoutTheBoundsOfInfiniteOnes) {
  const Activation activation(GetParam());
  for (const Accuracy accuracy : {Accuracy::fast, Accuracy::exact}) {
    const Evaluated evaluated = on_gpu(activation, accuracy);
    std::size_t different = 0;
    float where = 0;
    for (std::size_t i = 0; i < scores().size(); ++i) {
      const float bounded = evaluated.alone[i], unbounded = evaluated.of_finite[i];
      const bool may_be_nan = std::isinf(scores()[i]);
      const bool is_same = std::bit_cast<std::uint32_t>(bounded) == std::bit_cast<std::uint32_t>(unbounded);
      if (is_same || (may_be_nan && std::isnan(unbounded))) continue;
      ++different;
      where = scores()[i];
    }
    EXPECT_EQ(different, 0u) << (accuracy == Accuracy::fast ? "fast" : "exact") << ", the last at " << where;
  }
}

std::string test_name(const testing::TestParamInfo<std::string>& tested) { return tested.param; }

INSTANTIATE_TEST_SUITE_P(Named, GpuFunctions, testing::ValuesIn(function_names()), test_name);

int print_table() {
  if (const std::string why = why_no_gpu(); !why.empty()) {
    fmt::print(stderr, "gpu_functions_test: {}\n", why);
    return 1;
  }
  fmt::print("| function | accuracy | f: error | at s | relative | at s | f': error | at s | relative | at s |\n");
  fmt::print("|---|---|---|---|---|---|---|---|---|---|\n");
  bool is_finite = true;
  for (const std::string& name : function_names()) {
    for (const Accuracy accuracy : {Accuracy::fast, Accuracy::exact}) {
      const Measured measured = measure(name, accuracy);
      fmt::print("| {} | {} |", name, accuracy == Accuracy::fast ? "fast" : "exact");
      for (const Errors& errors : {measured.value, measured.derivative}) {
        fmt::print(" {:.1e} | {:.3g} | {:.1e} | {:.3g} |", errors.scaled, errors.scaled_at, errors.relative,
                   errors.relative_at);
        is_finite &= errors.not_finite.empty();
      }
      fmt::print("\n");
    }
  }
  fmt::print("\n{} scores each; {}\n", scores().size(),
             is_finite ? "no NaN and no infinity where the true value is finite" : "some results are NaN or infinite");
  return is_finite ? 0 : 1;
}

}  // namespace
}  // namespace gdpa::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc > 1 && std::string(argv[1]) == "--table") return gdpa::test::print_table();
  return RUN_ALL_TESTS();
}
