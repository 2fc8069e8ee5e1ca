// The kernels of norms compile without spills for every architecture, with the newest and the oldest NVRTC, and the
// CTAs of a plan agree with them. The test needs no GPU.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "compilers.h"
#include "gdpa/activation.h"
#include "gdpa/error.h"
#include "gpu/kernels/norm.h"
#include "jit/cubin.h"

namespace gdpa::gpu {
namespace {

constexpr Device gpu_0{DeviceKind::cuda, 0};

struct Case {
  DType dtype;
  int64_t columns;
  Norm::Kind kind;
  DType weights;
  bool aligned;
  bool has_gate = true;
};

/// A norm with every operand, or every one but a gate, and all of its gradients.
Norm norm_of(const Case& c, int64_t rows) {
  const TensorView of_rows = TensorView::contiguous(nullptr, c.dtype, {rows, c.columns}, gpu_0);
  const TensorView vector = TensorView::contiguous(nullptr, c.weights, {c.columns}, gpu_0);
  Norm norm{.x = of_rows, .kind = c.kind, .weight = vector, .bias = vector, .residual = of_rows};
  if (c.has_gate) norm.gate = of_rows;
  return norm;
}
NormGradients gradients_of(const Case& c, int64_t rows) {
  const auto of_rows = MutableTensorView::contiguous(nullptr, c.dtype, {rows, c.columns}, gpu_0);
  const auto vector = MutableTensorView::contiguous(nullptr, c.weights, {c.columns}, gpu_0);
  NormGradients gradients{.x = of_rows, .weight = vector, .bias = vector};
  if (c.has_gate) gradients.gate = of_rows;
  return gradients;
}

std::vector<Launch> backward_launches(const Case& c, int64_t rows, const NormGradients& gradients, const Gpu& gpu) {
  return norm_backward_plan(norm_of(c, rows), {}, {}, gradients, c.aligned, gpu).launches;
}
std::vector<Launch> launches_of(const Case& c, int64_t rows, const Gpu& gpu) {
  std::vector<Launch> launches = backward_launches(c, rows, gradients_of(c, rows), gpu);
  launches.push_back(norm_plan(norm_of(c, rows), {}, {}, c.aligned, gpu).launches.at(0));
  return launches;
}

class NormKernels : public testing::TestWithParam<Case> {};

TEST_P(NormKernels, KeepEverythingInRegisters) {
  try {
    compilers();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const Activation identity("identity");
  for (const Launch& launch : launches_of(GetParam(), 1000, {})) {
    const std::string source = launch.kernel().source(identity.function());
    for (const char* const architecture : {"sm_80", "sm_90a", "sm_100a"}) {
      for (const jit::Nvrtc& nvrtc : compilers()) {
        SCOPED_TRACE(launch.kernel().description() + " " + architecture + " NVRTC " + nvrtc.version());
        const jit::Compiled compiled = compile(nvrtc, {source, "identity"}, architecture);
        const jit::Cubin cubin(compiled.cubin);
        EXPECT_EQ(cubin.local_bytes().value_or(-1), 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, NormKernels,
                         testing::Values(Case{DType::bfloat16, 512, Norm::Kind::layer, DType::bfloat16, true},
                                         Case{DType::bfloat16, 512, Norm::Kind::rms, DType::float32, true},
                                         Case{DType::float16, 72, Norm::Kind::layer, DType::float32, false},
                                         Case{DType::bfloat16, 512, Norm::Kind::layer, DType::float32, true, false},
                                         Case{DType::bfloat16, 2048, Norm::Kind::rms, DType::float32, true, false},
                                         Case{DType::float32, 1000, Norm::Kind::layer, DType::float32, true},
                                         Case{DType::bfloat16, 4096, Norm::Kind::layer, DType::float32, true},
                                         Case{DType::float32, 4096, Norm::Kind::layer, DType::float32, true}));

TEST(NormPlan, ManyRowsHaveAsManyCtasAsFitAndFewRowsHaveFewer) {
  const Gpu gpu{.multiprocessors = 100};
  const Case narrow{DType::bfloat16, 512, Norm::Kind::rms, DType::bfloat16, true};
  const Case wide{DType::bfloat16, 4096, Norm::Kind::rms, DType::bfloat16, true};
  const auto ctas = [&](const Case& c, int64_t rows) {
    const std::vector<Launch> launches = launches_of(c, rows, gpu);
    return std::vector<int64_t>{launches[0].ctas(), launches[2].ctas()};
  };
  EXPECT_EQ(ctas(narrow, 1'000'000), (std::vector<int64_t>{300, 400})) << "of 128 threads, which need many registers";
  EXPECT_EQ(ctas(narrow, 17), (std::vector<int64_t>{5, 5})) << "a CTA has 4 rows at a time";
  EXPECT_EQ(ctas(wide, 17), (std::vector<int64_t>{17, 17})) << "a CTA has one row at a time";
  EXPECT_EQ(ctas(narrow, 0), (std::vector<int64_t>{1, 1}));
}

TEST(NormPlan, OnlyGradientsOfWeightsNeedASecondKernel) {
  const Case c{DType::bfloat16, 512, Norm::Kind::layer, DType::bfloat16, true};
  NormGradients gradients = gradients_of(c, 10);
  EXPECT_EQ(backward_launches(c, 10, gradients, {}).size(), 2U);
  gradients.weight = gradients.bias = {};
  EXPECT_EQ(backward_launches(c, 10, gradients, {}).size(), 1U);
}

// --- checks ----------------------------------------------------------------------------------------------------------

/// The message of the error of a call. Nothing is computed, because each call has a mistake.
std::string refusal_of(Norm norm, NormGradients gradients = {}) {
  static float memory[1];
  const auto with_address = [](auto& view) { view.data = memory; };
  with_address(norm.x);
  for (auto* const view : {&norm.weight, &norm.bias, &norm.gate, &norm.residual}) {
    if (*view) with_address(**view);
  }
  const TensorView read = TensorView::contiguous(memory, DType::float32, {norm.x.sizes[0], 2}, gpu_0);
  try {
    norm_backward(norm, norm.x, read, gradients);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(NormChecks, EveryMistakeHasAMessage) {
  const Case c{DType::bfloat16, 64, Norm::Kind::layer, DType::float32, true};
  const auto refusal = [&](auto change) {
    Norm norm = norm_of(c, 4);
    change(norm);
    return refusal_of(norm, {.x = MutableTensorView::contiguous(nullptr, c.dtype, {4, 64}, gpu_0)});
  };
  EXPECT_EQ(refusal([](Norm& n) { n.x.device = {}; }),
            "x: expected a tensor on a GPU, got cpu; use the operations of PyTorch on a CPU");
  EXPECT_EQ(
      refusal([](Norm& n) { n.x.rank = 1; }),
      "x: expected rank 2, (rows, columns), or rank 3, (rows, heads, columns), got rank 1 with shape (4,); reshape "
      "it");
  EXPECT_EQ(refusal([](Norm& n) { n.x.dtype = DType::float64; }),
            "x: expected dtype float32, bfloat16 or float16, got float64; convert it");
  EXPECT_EQ(refusal([](Norm& n) { n.x.sizes[1] = 4104; }),
            "x: expected rows of 8 to 4096 columns, got 4104; use the operations of PyTorch for other widths");
  EXPECT_EQ(refusal([](Norm& n) { n.x.sizes[1] = 63; }),
            "x: expected a multiple of 8 columns in each head, got 63; use the operations of PyTorch for other widths");
  EXPECT_EQ(refusal([](Norm& n) { n.eps = -1; }), "eps: expected a number of 0 or more, got -1; correct it");
  EXPECT_EQ(refusal([](Norm& n) { n.weight->sizes[0] = 8; }),
            "weight: expected a contiguous vector of 64 numbers, one for each column, got (8,); reshape it");
  EXPECT_EQ(refusal([](Norm& n) { n.bias->dtype = DType::bfloat16; }),
            "bias: expected dtype float32, got bfloat16; convert it");
  EXPECT_EQ(refusal([](Norm& n) { n.weight->dtype = DType::float16; }),
            "weight: expected dtype bfloat16 or float32, got float16; convert it");
  EXPECT_EQ(refusal([](Norm& n) { n.gate->sizes[0] = 3; }),
            "gate: expected 4 rows of 64 columns, as x has, got shape (3, 64); reshape it");
  EXPECT_EQ(refusal([](Norm& n) { n.residual->strides[1] = 2; }),
            "residual: expected a last dimension of stride 1, got stride 2; make it contiguous in the last dimension, "
            "e.g. by .contiguous()");
  Norm norm = norm_of(c, 4);
  EXPECT_EQ(refusal_of(norm),
            "norm_backward: expected at least one gradient that is wanted, got none; pass a tensor for "
            "one");
  norm.gate.reset();
  EXPECT_EQ(refusal_of(norm, gradients_of(c, 4)),
            "grad_gate: expected no gradient of a tensor that is not given, got one; leave it out");
}

}  // namespace
}  // namespace gdpa::gpu
