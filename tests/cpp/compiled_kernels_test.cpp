// Images that NVRTC makes: the small kernels compile for every architecture, and gdpa reads the registers, the memory
// and the constants of a cubin. The test needs no GPU.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "gdpa/gdpa.h"
#include "gpu/kernels/check_indices.h"
#include "gpu/kernels/check_offsets.h"
#include "gpu/kernels/clear_gaps.h"
#include "gpu/kernels/locate_sequences.h"
#include "gpu/loaded_kernels.h"
#include "jit/cubin.h"
#include "jit/nvrtc.h"
#include "with_compiler.h"

namespace gdpa {
namespace {

using CompiledKernels = WithCompiler;

TEST_F(CompiledKernels, APlanHasTheRegistersAndTheSharedMemoryOfItsKernel) {
  const auto operand = TensorView::contiguous(nullptr, DType::bfloat16, {8, 100, 4, 128});
  const Plan plan = explain({.query = operand, .key = operand, .value = operand}, Direction::forward, "sm_80");
  ASSERT_EQ(plan.kernels.size(), 1U);
  EXPECT_GT(plan.kernels[0].registers, 100);
  EXPECT_LE(plan.kernels[0].registers, 255);
  EXPECT_GT(plan.kernels[0].shared_bytes, 16 * 1024);
  EXPECT_EQ(plan.kernels[0].threads % 32, 0);
}

/// Compiles the kernel of a launch.
CompiledKernel compiled(const gpu::Launch& launch, const gpu::Expressions& expressions, const char* architecture) {
  return gpu::compile_kernels({launch.kernel()}, expressions, architecture).at(0);
}

TEST_F(CompiledKernels, TheKernelThatChecksOffsetsCompilesForEveryArchitecture) {
  const Activation any("s");
  for (const char* architecture : {"sm_80", "sm_90a", "sm_100a"}) {
    const CompiledKernel made = compiled(gpu::check_offsets({}), any.function(), architecture);
    EXPECT_EQ(made.kernel.threads, 256);
    EXPECT_NE(made.image.find("offsets must not fall"), std::string::npos);
  }
}

TEST_F(CompiledKernels, TheKernelsForGapsCompileForEveryArchitecture) {
  const Activation any("s");
  Problem problem;
  problem.has_query_gaps = true;
  std::vector<gpu::Launch> launches = {gpu::locate_sequences({})};
  gpu::clear_gaps(problem, launches);
  ASSERT_EQ(launches.size(), 2U);
  for (const gpu::Launch& launch : launches) {
    for (const char* architecture : {"sm_80", "sm_90a", "sm_100a"}) {
      EXPECT_EQ(compiled(launch, any.function(), architecture).kernel.threads, 256);
    }
  }
}

TEST_F(CompiledKernels, TheKernelThatChecksIndicesCompilesForEveryArchitecture) {
  const Activation function(
      "silu(s + w[head, clamp(floor(log2(1 + abs(t[q_idx] - t[kv_idx]))), 0, 9)] + of[kind[batch], q_idx - kv_idx])",
      {}, {"w", "t", "of", "kind"});
  const MaskExpression mask("(t[q_idx] >= t[kv_idx]) & (q_idx - kv_idx <= width[head])", {}, {"t", "width"});
  const Params params;
  ::setenv("GDPA_CHECK_INDICES", "1", 1);
  for (const char* architecture : {"sm_80", "sm_90a", "sm_100a"}) {
    for (const int64_t page_rows : {0, 64}) {
      Problem problem;
      problem.tensor_types = 0x4040;  // int32 and float32 (BoundTensor::type)
      problem.page_rows = page_rows;
      const gpu::Expressions expressions(function.function(), page_rows > 0 ? nullptr : &mask.function());
      const auto launch = gpu::check_indices({problem, params, expressions, {}});
      ASSERT_TRUE(launch.has_value());
      EXPECT_NE(compiled(*launch, expressions, architecture).image.find("expected 0 to %lld"), std::string::npos);
    }
  }
  ::unsetenv("GDPA_CHECK_INDICES");
}

TEST(Cubin, SaysRegistersLocalMemorySharedMemoryAndConstants) {
  std::string image;
  try {
    const auto compiled = jit::Nvrtc::open().compile({R"(
extern "C" __constant__ int answer = 42;
extern "C" __constant__ int nothing = 0;
extern "C" __global__ void kernel(const int* in, int* out, int at) {
  __shared__ int shared[100];
  int local[50];
  for (int i = 0; i < 50; ++i) local[in[i]] = i;
  shared[threadIdx.x % 100] = in[threadIdx.x];
  __syncthreads();
  out[at] = local[in[at]] + shared[in[at + 1]];
}
)",
                                                      "a test"},
                                                     "sm_90a");
    image = compiled.cubin;
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const jit::Cubin cubin(image);
  EXPECT_EQ(cubin.constant("answer"), 42);
  EXPECT_EQ(cubin.constant("nothing"), 0);
  EXPECT_EQ(cubin.constant("missing"), std::nullopt);
  EXPECT_GE(cubin.registers().value_or(0), 8);
  EXPECT_GE(cubin.local_bytes().value_or(0), 200);
  EXPECT_GE(cubin.static_shared_bytes(), 400);

  // Whatever the bytes say, nothing outside of them is read.
  for (std::size_t size = 0; size < image.size(); size += 7) {
    const std::string part = image.substr(0, size);
    const jit::Cubin damaged(part);
    EXPECT_FALSE(damaged.constant("missing"));
    damaged.registers();
    damaged.static_shared_bytes();
  }
  EXPECT_EQ(jit::Cubin("not a cubin").registers(), std::nullopt);
}

}  // namespace
}  // namespace gdpa
