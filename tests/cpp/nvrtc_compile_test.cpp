// The CUDA that activations print, compiled by NVRTC for every architecture that has kernels, and NVRTC's own errors.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "codegen/function.h"
#include "expression/function.h"
#include "gdpa/activation.h"
#include "gdpa/error.h"
#include "jit/nvrtc.h"

namespace {

using gdpa::Accuracy;
using gdpa::Activation;
using gdpa::jit::Nvrtc;

// Set for the time of one test.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value.c_str(), 1);
  }
  ~Environment() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

const char* const kernel = R"(
extern "C" __global__ void evaluate(const float* scores, float* values, float* derivatives, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  float f, derivative;
  ActivationWithDerivative{}.value_and_derivative(scores[i], {}, f, derivative);
  values[i] = f + Activation{}.value(scores[i], {});
  derivatives[i] = derivative;
}
)";

class Compile : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    try {
      nvrtc_.emplace(Nvrtc::open());
    } catch (const gdpa::Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  void compile(const std::string& text) {
    const Activation activation(text);
    for (const Accuracy accuracy : {Accuracy::fast, Accuracy::exact}) {
      const std::string source = cuda_source(activation.function(), accuracy) + kernel;
      const auto compiled = nvrtc_->compile({source, activation.text()}, GetParam());
      EXPECT_GT(compiled.cubin.size(), 500u);
      EXPECT_EQ(compiled.log, "") << source;
    }
  }

  std::optional<Nvrtc> nvrtc_;
};

TEST_P(Compile, EveryName) {
  for (const auto& row : gdpa::named_activations()) compile(row.name);
}

TEST_P(Compile, EveryOperation) {
  for (const char* text : {
           "s * sigmoid(1.702 * s)",
           "a * tanh(b * s) with a = 2, b = 0.5",
           "min(s, 1, exp(-s^2)) + max(s, -3) - clamp(s, -1e-9, inf)",
           "where(s != 0, 1 / s, -inf) + where(s <= 2, s / cos(s), -s)",
           "sqrt(abs(s)) * rsqrt(1 + s^2) * sign(s)",
           "exp2(s) + expm1(s) + log(2 + s) + log1p(abs(s))",
           "erf(s) * softplus(s) + sin(s) * s^2.3",
           "2^s + s^-2 + s^0.5 + 3^s + s^s",
           "gelu(2 * s) + 1",
           "where(s == 1, relu(s), hardswish(s)) / (1e20 + s^17)",
           "3",
           "s * (0.1 + 0.2 * s * (0.3 + 1e-40 * s)) + 1e300 + 123456789",
       }) {
    compile(text);
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, Compile, testing::Values("sm_80", "sm_90a", "sm_100a"),
                         [](const auto& test) { return test.param; });

TEST(CudaSource, SaysTheFunctionAndTheHardwaresInstructions) {
  const Activation silu("silu");
  const std::string fast = cuda_source(silu.function(), Accuracy::fast);
  const std::string exact = cuda_source(silu.function(), Accuracy::exact);
  EXPECT_NE(fast.find("// silu\nusing InputValues = gdpa::NoValues;\n\nstruct Activation {"), std::string::npos)
      << fast;
  EXPECT_NE(fast.find("gdpa::fast::tanh"), std::string::npos) << fast;
  EXPECT_EQ(fast.find("exact::"), std::string::npos) << fast;
  EXPECT_NE(exact.find("gdpa::exact::sigmoid"), std::string::npos) << exact;
  EXPECT_EQ(exact.find("fast::"), std::string::npos) << exact;
}

TEST(CudaSource, LiteralsAreFp32AndKeepInfinity) {
  const std::string text = cuda_source(Activation("where(s < 1e300, 0.1 * s, -1e39)").function(), Accuracy::exact);
  EXPECT_NE(text.find("0.1f * x"), std::string::npos) << text;
  EXPECT_NE(text.find("x < __int_as_float(0x7f800000)"), std::string::npos) << text;
  EXPECT_NE(text.find("__int_as_float(0xff800000)"), std::string::npos) << text;
}

TEST(NvrtcErrors, ShowTheLineAndTheActivation) {
  std::optional<Nvrtc> nvrtc;
  try {
    nvrtc.emplace(Nvrtc::open());
  } catch (const gdpa::Error& error) {
    GTEST_SKIP() << error.what();
  }
  try {
    nvrtc->compile({"struct A {};\n  int broken = missing;\n", "s * tanh(s)"}, "sm_80");
    FAIL() << "compiled";
  } catch (const gdpa::Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), gdpa::ErrorKind::runtime);
    EXPECT_NE(message.find("could not compile \"s * tanh(s)\" for sm_80"), std::string::npos) << message;
    EXPECT_NE(message.find("line 2:\n      int broken = missing;"), std::string::npos) << message;
    EXPECT_NE(message.find("\"missing\" is undefined"), std::string::npos) << message;
  }
  EXPECT_THROW(nvrtc->compile({"", ""}, "sm_7"), gdpa::Error);
}

TEST(NvrtcErrors, ALibraryNamedByTheUserIsNotPassedOver) {
  const Environment environment("GDPA_NVRTC", "/nonexistent/libnvrtc.so.13");
  try {
    Nvrtc::open();
    FAIL() << "opened";
  } catch (const gdpa::Error& error) {
    EXPECT_NE(std::string(error.what()).find("GDPA_NVRTC is \"/nonexistent/libnvrtc.so.13\""), std::string::npos)
        << error.what();
  }
}

// Each place in a process of its own: a library that is open already is found before the places are looked at.
void expect_found_at(const char* name, const std::string& value) {
  const auto child = [&] {
    const Environment environment(name, value);
    std::fprintf(stderr, "found %s", Nvrtc::open().path().c_str());
    std::exit(0);
  };
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "found " + value);
}

TEST(NvrtcSearch, FindsTheToolkits) {
  const char* const home = std::getenv("CUDA_HOME");
  const std::string toolkit = std::filesystem::canonical(home == nullptr ? "/usr/local/cuda" : home);
  if (!std::filesystem::exists(toolkit + "/lib64/libnvrtc.so.13")) GTEST_SKIP() << "no toolkit in " << toolkit;
  expect_found_at("GDPA_NVRTC", std::filesystem::canonical(toolkit + "/lib64"));
}

TEST(NvrtcSearch, FindsTheOneThatTorchBrings) {
  const char* const folder = std::getenv("GDPA_SITE_PACKAGES");
  if (folder == nullptr) GTEST_SKIP() << "GDPA_SITE_PACKAGES, the site-packages folder of a torch, is not set";
  expect_found_at("GDPA_SITE_PACKAGES", folder);
}

}  // namespace
