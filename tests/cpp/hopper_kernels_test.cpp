// The Hopper kernels compile, by the NVRTC at hand, without a spill and without a warning that products wait for each
// other, multiply by WGMMA and copy by TMA; and the function lies between the two waits, where the products of P V run
// beside it, in as few instructions as its formula has. No GPU is needed.
#include <gtest/gtest.h>

#include <optional>
#include <ostream>
#include <regex>
#include <string>

#include "cuda/source.h"
#include "disassemble.h"
#include "gdpa/error.h"
#include "jit/nvrtc.h"
#include "plan/gpu_plan.h"

namespace gdpa::cuda {
namespace {

struct Case {
  DType dtype;
  int64_t head_dim;
  int64_t head_dim_v;
  int64_t mean_keys;
  const char* function;
  int tanhs;       ///< for each score
  int arithmetic;  ///< instructions in fp32 beside them
  int bounds;      ///< those more that the pass takes which assumes nothing of the scores
};

std::ostream& operator<<(std::ostream& stream, const Case& test) {
  return stream << test.head_dim << " x " << test.head_dim_v << ", " << test.mean_keys << " keys, " << test.function;
}

class HopperKernels : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    try {
      nvrtc_.emplace(jit::Nvrtc::open());
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    Problem problem;
    problem.dtype = GetParam().dtype;
    problem.batch = 10;
    problem.heads_q = problem.heads_k = 4;
    problem.head_dim = GetParam().head_dim;
    problem.head_dim_v = GetParam().head_dim_v;
    problem.rows_q = problem.rows_k = GetParam().mean_keys * problem.batch;
    const Activation activation(GetParam().function);
    plan::GpuPlan plan = plan::gpu_plan(problem, plan::Gpu{}, plan::FunctionRegisters::few, true,
                                        plan::Float32Products::three, plan::TensorMaps::available);
    plan::take_scale_out(plan, activation.function().value(), 0.125);
    ASSERT_EQ(plan.steps.size(), 1U);
    ASSERT_EQ(plan.steps[0].kernel.family, plan::KernelFamily::hopper) << plan.reason;
    kernel_ = plan.steps[0].kernel;
    compiled_ = nvrtc_->compile({kernel_source(kernel_, activation.function(), Accuracy::fast), activation.text()},
                                "sm_90a", {"--ptxas-options=-v"});
  }

  std::optional<jit::Nvrtc> nvrtc_;
  plan::KernelSpec kernel_;
  jit::Compiled compiled_;
};

TEST_P(HopperKernels, KeepEverythingInRegistersAndNoProductWaits) {
  EXPECT_NE(compiled_.log.find("0 bytes spill stores, 0 bytes spill loads"), std::string::npos) << compiled_.log;
  // C7508: setmaxnreg ignored; C7510 to C7519: products serialised.
  EXPECT_FALSE(std::regex_search(compiled_.log, std::regex("C75[01][0-9]"))) << compiled_.log;
}

TEST_P(HopperKernels, TheFunctionRunsWhileTheProductsDo) {
  if (disassembler().empty()) GTEST_SKIP() << "no nvdisasm: set GDPA_SITE_PACKAGES to a folder that holds triton";
  const std::string code = disassemble(compiled_.cubin);
  for (const char* instruction : {"HGMMA", "UTMALDG", "USETMAXREG"}) {
    EXPECT_NE(code.find(instruction), std::string::npos) << instruction;
  }
  // O leaves by the copy engine from the place of Q, or by 16 bytes a thread where Q stays there.
  EXPECT_EQ(code.find("UTMASTG") != std::string::npos, kernel_.query_in_registers);
  // Between the wait for Q K^T and the wait for P V, for each score that a thread holds.
  const std::size_t begin = code.find("WARPGROUP.DEPBAR.LE gsb0, 0x1");
  ASSERT_NE(begin, std::string::npos);
  const std::size_t end = code.find("WARPGROUP.DEPBAR.LE gsb0, 0x0", begin);
  ASSERT_NE(end, std::string::npos);
  const auto count = [&](const char* instruction) {
    int result = 0;
    for (std::size_t at = begin; (at = code.find(instruction, at)) < end; ++at) ++result;
    return result;
  };
  const int scores = kernel_.tile_keys / 2;
  const int passes = GetParam().bounds > 0 ? 2 : 1;
  EXPECT_EQ(count(" MUFU.TANH "), passes * GetParam().tanhs * scores);
  const int arithmetic = count(" FMUL ") + count(" FFMA ") + count(" FADD ") + count(" FMNMX");
  // Where both passes begin alike, their first instruction may be there once, before the branch.
  const int expected = (passes * GetParam().arithmetic + GetParam().bounds) * scores;
  EXPECT_LE(arithmetic, expected);
  EXPECT_GE(arithmetic, expected - (passes - 1));
  // max(x, 0) is a part of the rounding to 16 bits.
  EXPECT_EQ(code.find("F2FP.RELU") != std::string::npos, std::string(GetParam().function) == "relu");
}

INSTANTIATE_TEST_SUITE_P(
    Plans, HopperKernels,
    testing::Values(
        Case{DType::bfloat16, 128, 128, 2048, "gelu_tanh", 1, 3, 1},
        Case{DType::bfloat16, 128, 128, 256, "silu", 1, 1, 1}, Case{DType::float16, 128, 128, 2048, "gelu", 1, 6, 1},
        Case{DType::bfloat16, 64, 64, 2048, "gelu_tanh", 1, 3, 1}, Case{DType::bfloat16, 64, 64, 256, "gelu", 1, 5, 1},
        Case{DType::float16, 96, 64, 2048, "silu", 1, 2, 1}, Case{DType::bfloat16, 40, 72, 2048, "tanh", 1, 0, 0},
        Case{DType::bfloat16, 128, 128, 2048, "relu", 0, 0, 0}, Case{DType::float16, 64, 64, 2048, "relu", 0, 1, 0},
        Case{DType::bfloat16, 64, 64, 256, "relu2", 0, 2, 0},
        Case{DType::bfloat16, 192, 192, 2048, "gelu_tanh", 1, 3, 1},
        Case{DType::float16, 160, 160, 128, "gelu", 1, 6, 1}, Case{DType::bfloat16, 192, 128, 2048, "silu", 1, 1, 1},
        Case{DType::float16, 136, 200, 2048, "tanh", 1, 1, 0}, Case{DType::bfloat16, 128, 256, 2048, "gelu", 1, 6, 1},
        Case{DType::bfloat16, 256, 64, 2048, "silu", 1, 1, 1}, Case{DType::bfloat16, 256, 256, 2048, "gelu", 1, 6, 1},
        Case{DType::float16, 256, 256, 128, "gelu_tanh", 1, 4, 1}));

}  // namespace
}  // namespace gdpa::cuda
