// Hopper's forward kernels of functions that read a dense bias or a lookup compile without spills and without warnings
// about serialised products, with both NVRTCs. The main loop copies the elements of a bias to shared memory, 16 bytes
// at a time, and reads the elements of a lookup there. The test needs no GPU.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include "compilers.h"
#include "cuda/source.h"
#include "disassemble.h"
#include "families/family.h"
#include "gdpa/error.h"
#include "jit/nvrtc.h"
#include "machine_code.h"
#include "plan/gpu_plan.h"

namespace gdpa::cuda {
namespace {

struct Case {
  std::string name;
  NumberType type;
  int64_t head_dim;
  int64_t keys;
  bool stages_tile;  ///< whether rows begin at multiples of 16 bytes
};

std::ostream& operator<<(std::ostream& stream, const Case& test) { return stream << test.name; }

class HopperForwardInputs : public testing::TestWithParam<Case> {};

TEST_P(HopperForwardInputs, OfADenseBiasAreStagedAndEverythingElseIsInRegisters) {
  try {
    compilers();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const Case& test = GetParam();
  const Activation activation("silu(s + bias[b, h, i, j])", {}, {"bias"});
  Problem problem;
  problem.dtype = DType::bfloat16;
  problem.batch = 10;
  problem.heads_q = problem.heads_k = 4;
  problem.head_dim = problem.head_dim_v = test.head_dim;
  problem.rows_q = problem.rows_k = test.keys * problem.batch;
  problem.tensor_types = static_cast<unsigned>(test.type);
  families::PlanRequest request{problem,
                                plan::Gpu{},
                                plan::FunctionRegisters::many,
                                true,
                                plan::Float32Products::three,
                                plan::TensorMaps::available};
  request.reads = 1;
  request.tile_element_bytes = !test.stages_tile ? 0 : test.type == NumberType::float32 ? 4 : 2;
  request.bounds_scores = activation.function().bounds_scores();
  plan::GpuPlan plan = families::gpu_plan(request);
  plan::take_scale_out(plan, activation.function().value(), 0.125);
  for (plan::GpuStep& step : plan.steps) {
    step.kernel.tensor_types = problem.tensor_types;
    ASSERT_EQ(step.kernel.hopper().stages_tile, test.stages_tile);
    for (const jit::Nvrtc& nvrtc : compilers()) {
      const jit::Compiled compiled = nvrtc.compile(
          {kernel_source(step.kernel, activation.function()), activation.text()}, "sm_90a", {"--ptxas-options=-v"});
      EXPECT_TRUE(has_no_spill(compiled)) << compiled.log;
      EXPECT_FALSE(has_warning(compiled)) << compiled.log;
      if (disassembler().empty()) continue;
      const std::string code = disassemble(compiled.cubin);
      // The function lies between the wait for S and the wait for P V.
      const std::size_t begin = code.find("WARPGROUP.DEPBAR.LE gsb0, 0x1"),
                        end = code.find("WARPGROUP.DEPBAR.LE gsb0, 0x0", begin);
      ASSERT_NE(end, std::string::npos);
      const std::string_view part = std::string_view(code).substr(begin, end - begin);
      const int bytes = test.type == NumberType::float32 ? 4 : 2;
      const int scores = step.kernel.tile_keys / 2, copies = count(part, "LDGSTS");
      EXPECT_EQ(copies, test.stages_tile ? scores * bytes / 16 : 0);
      if (!test.stages_tile) continue;
      // Some other loads of 64 bits are of the list of tiles.
      EXPECT_EQ((bytes == 2 ? count(part, "LDSM") * 8 : count(part, "LDS.64") * 2) / scores, 1);
      // The loads of one chunk, in the code for keys beyond the axis, which is not unrolled.
      EXPECT_EQ(count(part, "LDG.E"), 16 / bytes);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, HopperForwardInputs,
                         testing::Values(Case{"bfloat16_128", NumberType::bfloat16, 128, 2048, true},
                                         Case{"float16_64", NumberType::float16, 64, 2048, true},
                                         Case{"float32_128", NumberType::float32, 128, 2048, true},
                                         Case{"bfloat16_of_other_rows", NumberType::bfloat16, 128, 2048, false},
                                         Case{"float32_64", NumberType::float32, 64, 2048, true},
                                         Case{"float32_128_short", NumberType::float32, 128, 50, true},
                                         Case{"bfloat16_256", NumberType::bfloat16, 256, 2048, true}),
                         [](const testing::TestParamInfo<Case>& test) { return test.param.name; });

class HopperForwardLookups : public testing::TestWithParam<NumberType> {};

TEST_P(HopperForwardLookups, AreReadFromSharedMemory) {
  try {
    compilers();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const Activation activation("silu(s + w[h, clamp(floor(log2(1 + abs(t_q[i] - t_k[j]))), 0, 63)])", {},
                              {"w", "t_q", "t_k"});
  Problem problem;
  problem.dtype = DType::bfloat16;
  problem.batch = 10;
  problem.heads_q = problem.heads_k = 4;
  problem.head_dim = problem.head_dim_v = 128;
  problem.rows_q = problem.rows_k = 20480;
  const auto type = static_cast<unsigned>(GetParam());
  problem.tensor_types = static_cast<unsigned>(NumberType::float32) | type << 4 | type << 8;
  families::PlanRequest request{problem,
                                plan::Gpu{},
                                plan::FunctionRegisters::many,
                                true,
                                plan::Float32Products::three,
                                plan::TensorMaps::available};
  request.reads = 3;
  request.reads_of_lines = request.lookups = 1;
  request.bounds_scores = activation.function().bounds_scores();
  plan::GpuPlan plan = families::gpu_plan(request);
  plan::take_scale_out(plan, activation.function().value(), 0.125);
  plan::KernelSpec kernel = plan.steps.front().kernel;  // the second pass seldom computes anything
  kernel.tensor_types = problem.tensor_types;
  ASSERT_TRUE(kernel.hopper().stages_lookups);
  ASSERT_EQ(kernel.tile_keys, 112);
  for (const jit::Nvrtc& nvrtc : compilers()) {
    const jit::Compiled compiled = nvrtc.compile({kernel_source(kernel, activation.function()), activation.text()},
                                                 "sm_90a", {"--ptxas-options=-v"});
    EXPECT_TRUE(has_no_spill(compiled)) << compiled.log;
    EXPECT_FALSE(has_warning(compiled)) << compiled.log;
    if (disassembler().empty()) continue;
    const std::string code = disassemble(compiled.cubin);
    const std::size_t begin = code.find("WARPGROUP.DEPBAR.LE gsb0, 0x1"),
                      end = code.find("WARPGROUP.DEPBAR.LE gsb0, 0x0", begin);
    ASSERT_NE(end, std::string::npos);
    const std::string_view part = std::string_view(code).substr(begin, end - begin);
    const int scores = kernel.tile_keys / 2;
    const bool are_integers = GetParam() == NumberType::int64;
    EXPECT_EQ(count(part, "LDG"), 0);
    // Close integers have one instruction for |t_q - t_k| and one for the logarithm.
    EXPECT_EQ(count(part, "MUFU"), (are_integers ? 3 : 2) * scores);  // one function for each form of a tile
    EXPECT_EQ(count(part, "VABSDIFF"), are_integers ? scores : 0);
    EXPECT_EQ(count(part, "FLO") >= 2 * scores, are_integers);
  }
}

INSTANTIATE_TEST_SUITE_P(Times, HopperForwardLookups, testing::Values(NumberType::int64, NumberType::float32),
                         [](const testing::TestParamInfo<NumberType>& test) {
                           return test.param == NumberType::int64 ? "int64" : "float32";
                         });

}  // namespace
}  // namespace gdpa::cuda
