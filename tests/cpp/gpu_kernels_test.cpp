// The kernels of plans compile, by the NVRTC at hand, for Ampere, Hopper and Blackwell, and the common ones keep
// everything in registers. No GPU is needed.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "cuda/kernels.h"
#include "cuda/source.h"
#include "gdpa/error.h"
#include "jit/nvrtc.h"
#include "plan/gpu_plan.h"

namespace gdpa::cuda {
namespace {

struct Case {
  DType dtype;
  int64_t head_dim;
  int64_t head_dim_v;
  int capability;
};

class GpuKernels : public testing::TestWithParam<Case> {
 protected:
  /// Every kernel of forward, backward and deterministic backward.
  static std::vector<plan::KernelSpec> kernels() {
    std::vector<plan::KernelSpec> result;
    plan::Gpu gpu;
    gpu.capability = GetParam().capability;
    Problem problem;
    problem.dtype = GetParam().dtype;
    problem.batch = 10;
    problem.heads_q = problem.heads_k = 4;
    problem.head_dim = GetParam().head_dim;
    problem.head_dim_v = GetParam().head_dim_v;
    problem.rows_q = problem.rows_k = 1000;
    const auto add = [&] {
      for (const plan::GpuStep& step : plan::gpu_plan(problem, gpu, plan::FunctionRegisters::few, true, plan::Float32Products::three).steps) {
        result.push_back(step.kernel);
      }
    };
    add();
    problem.direction = Direction::backward;
    add();
    problem.deterministic = true;
    add();
    result.push_back(plan::reduction(problem, gpu, true, problem.head_dim, 1000).kernel);
    return result;
  }
};

TEST_P(GpuKernels, CompileWithoutSpills) {
  std::optional<jit::Nvrtc> nvrtc;
  try {
    nvrtc.emplace(jit::Nvrtc::open());
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const Activation activation("gelu");
  for (const plan::KernelSpec& kernel : kernels()) {
    const std::string source = kernel_source(kernel, activation.function(), Accuracy::fast);
    const jit::Compiled compiled =
        nvrtc->compile({source, activation.text()}, architecture_of(GetParam().capability), {"--ptxas-options=-v"});
    EXPECT_FALSE(compiled.cubin.empty());
    EXPECT_NE(compiled.log.find("0 bytes spill stores"), std::string::npos) << describe(kernel) << "\n" << compiled.log;
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, GpuKernels,
                         testing::Values(Case{DType::bfloat16, 128, 128, 80}, Case{DType::bfloat16, 128, 128, 90},
                                         Case{DType::bfloat16, 128, 128, 100}, Case{DType::bfloat16, 64, 64, 90},
                                         Case{DType::float16, 192, 128, 90}, Case{DType::float32, 64, 64, 90}));

}  // namespace
}  // namespace gdpa::cuda
