// Hopper's forward kernels of functions that read a dense bias or a lookup, and of a list of functions, compile without
// spills and without warnings about serialised products, with both NVRTCs. The main loop copies the elements of a bias
// to shared memory, 16 bytes at a time, and reads the elements of a lookup there. The test needs no GPU.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "compilers.h"
#include "gpu/kernel.h"
#include "disassemble.h"
#include "gpu/families/family.h"
#include "gdpa/error.h"
#include "jit/nvrtc.h"
#include "machine_code.h"
#include "gpu/plan.h"

namespace gdpa::gpu {
namespace {

struct Case {
  std::string name;
  NumberType type;
  int64_t head_dim;
  int64_t keys;
  BiasTile rows;  ///< of the bias
};

std::ostream& operator<<(std::ostream& stream, const Case& test) { return stream << test.name; }

/// A bf16 problem of four heads.
Problem problem_of(int64_t head_dim, int64_t rows, unsigned tensor_types) {
  Problem problem;
  problem.dtype = DType::bfloat16;
  problem.batch = 10;
  problem.heads_q = problem.heads_k = 4;
  problem.head_dim = problem.head_dim_v = head_dim;
  problem.rows_q = problem.rows_k = rows;
  problem.tensor_types = tensor_types;
  return problem;
}

families::PlanRequest request_of(const Problem& problem, const Activation& activation) {
  families::PlanRequest request{problem,
                                gpu::Gpu{},
                                plan::FunctionRegisters::many,
                                true,
                                plan::Float32Products::three,
                                plan::TensorMaps::available};
  request.bounds_scores = activation.function().bounds_scores();
  return request;
}

std::vector<plan::KernelSpec> kernels_of(const families::PlanRequest& request, const Activation& activation) {
  gpu::GpuPlan plan = families::gpu_plan(request);
  plan::take_scale_out(plan, activation.function().value(), 0.125);
  std::vector<plan::KernelSpec> kernels;
  for (const gpu::GpuStep& step : plan.steps) {
    kernels.push_back(step.kernel);
    kernels.back().tensor_types = request.problem.tensor_types;
  }
  return kernels;
}

/// Compiles a kernel, expects no spill and no warning, and returns the machine code of the function, which lies between
/// the wait for S and the wait for P V. Returns an empty text if there is no disassembler.
std::string function_code(const jit::Nvrtc& nvrtc, const plan::KernelSpec& kernel, const Activation& activation) {
  const jit::Compiled compiled =
      compile(nvrtc, {kernel_source(kernel, activation.function()), activation.text()}, "sm_90a");
  EXPECT_TRUE(has_no_spill(compiled)) << compiled.log;
  EXPECT_FALSE(has_warning(compiled)) << compiled.log;
  if (disassembler().empty()) return "";
  const std::string code = disassemble(compiled.cubin);
  const std::size_t begin = code.find("WARPGROUP.DEPBAR.LE gsb0, 0x1"),
                    end = code.find("WARPGROUP.DEPBAR.LE gsb0, 0x0", begin);
  EXPECT_NE(end, std::string::npos);
  return end == std::string::npos ? "" : code.substr(begin, end - begin);
}

class HopperForwardInputs : public testing::TestWithParam<Case> {};

TEST_P(HopperForwardInputs, OfADenseBiasAreStagedAndEverythingElseIsInRegisters) {
  try {
    compilers();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const Case& test = GetParam();
  const Activation activation("silu(s + bias[batch, head, q_idx, kv_idx])", {}, {"bias"});
  families::PlanRequest request =
      request_of(problem_of(test.head_dim, test.keys * 10, static_cast<unsigned>(test.type)), activation);
  request.reads = 1;
  request.tile_element_bytes = test.rows == BiasTile::none ? 0 : test.type == NumberType::float32 ? 4 : 2;
  request.bias_tile = test.rows;
  for (const plan::KernelSpec& kernel : kernels_of(request, activation)) {
    ASSERT_EQ(kernel.hopper().bias_tile, test.rows);
    for (const jit::Nvrtc& nvrtc : compilers()) {
      const std::string part = function_code(nvrtc, kernel, activation);
      if (part.empty()) continue;
      const int bytes = test.type == NumberType::float32 ? 4 : 2;
      const int scores = kernel.tile_keys / 2, copies = count(part, "LDGSTS");
      const bool is_unaligned = test.rows == BiasTile::unaligned;
      // A lane copies a chunk of 16 bytes of every second row, of each row if it has more than 17 chunks, and of every
      // fourth row if it has at most 8. One more copy is in the loop for tiles at the end of an axis, and one for the
      // chunk that unaligned rows have after the last lane.
      const int chunks = kernel.tile_keys * bytes / 16 + (is_unaligned ? 1 : 0);
      const int of_rows = chunks <= 8 ? 4 : chunks <= 17 ? 8 : 16;
      EXPECT_EQ(copies, test.rows == BiasTile::none ? 0 : of_rows + (chunks == 17 ? 1 : 0) + 1);
      // The scale is a factor of Q if enough registers are left, otherwise of each score.
      const bool multiplies_query =
          test.rows != BiasTile::none && test.type != NumberType::float32 && kernel.hopper().query_in_registers;
      EXPECT_EQ(count(part, "FMUL") < scores, multiplies_query);
      if (test.rows == BiasTile::none) continue;
      // Some other loads are of the list of tiles.
      const int loaded = is_unaligned ? count(part, "LDS ")
                         : bytes == 2 ? count(part, "LDSM") * 8
                                      : count(part, "LDS.64") * 2;
      EXPECT_EQ(loaded / scores, 1);
      // The loads of one chunk, in the code for keys beyond the axis, which is not unrolled.
      EXPECT_EQ(count(part, "LDG.E"), 16 / bytes);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plans, HopperForwardInputs,
    testing::Values(Case{"bfloat16_128", NumberType::bfloat16, 128, 2048, BiasTile::aligned},
                    Case{"float16_64", NumberType::float16, 64, 2048, BiasTile::aligned},
                    Case{"float32_128", NumberType::float32, 128, 2048, BiasTile::aligned},
                    Case{"bfloat16_not_staged", NumberType::bfloat16, 128, 2048, BiasTile::none},
                    Case{"bfloat16_unaligned", NumberType::bfloat16, 128, 2048, BiasTile::unaligned},
                    Case{"float16_64_unaligned", NumberType::float16, 64, 2048, BiasTile::unaligned},
                    Case{"float32_unaligned", NumberType::float32, 128, 2048, BiasTile::unaligned},
                    Case{"float32_64", NumberType::float32, 64, 2048, BiasTile::aligned},
                    Case{"float32_128_short", NumberType::float32, 128, 50, BiasTile::aligned},
                    Case{"bfloat16_256", NumberType::bfloat16, 256, 2048, BiasTile::aligned}),
    [](const testing::TestParamInfo<Case>& test) { return test.param.name; });

TEST(HopperForwardList, MultipliesScoresOnlyForFunctionsThatDoNotTolerateARoundedQuery) {
  try {
    compilers();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const Activation list("silu; silu; s * exp(-s * s); silu");
  const plan::KernelSpec kernel = kernels_of(request_of(problem_of(128, 20480, 0), list), list).front();
  for (const jit::Nvrtc& nvrtc : compilers()) {
    const std::string part = function_code(nvrtc, kernel, list);
    if (part.empty()) continue;
    // Q is multiplied for silu. The other function has a product with the scale, and two of its own.
    EXPECT_NEAR(count(part, "FMUL"), 3 * kernel.tile_keys / 2, 2);
  }
}

class HopperForwardLookups : public testing::TestWithParam<NumberType> {};

TEST_P(HopperForwardLookups, AreReadFromSharedMemory) {
  try {
    compilers();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const Activation activation("silu(s + w[head, clamp(floor(log2(1 + abs(t_q[q_row] - t_k[kv_row]))), 0, 63)])", {},
                              {"w", "t_q", "t_k"});
  const auto type = static_cast<unsigned>(GetParam());
  const unsigned types = static_cast<unsigned>(NumberType::float32) | type << 4 | type << 8;
  families::PlanRequest request = request_of(problem_of(128, 20480, types), activation);
  request.reads = 3;
  request.reads_of_lines = request.lookups = 1;
  const plan::KernelSpec kernel = kernels_of(request, activation).front();  // the second pass seldom computes anything
  ASSERT_TRUE(kernel.hopper().stages_lookups);
  ASSERT_EQ(kernel.tile_keys, 112);
  for (const jit::Nvrtc& nvrtc : compilers()) {
    const std::string part = function_code(nvrtc, kernel, activation);
    if (part.empty()) continue;
    const int scores = kernel.tile_keys / 2;
    const bool are_integers = GetParam() == NumberType::int64;
    EXPECT_EQ(count(part, "LDG"), 0);
    // Close integers have one instruction for |t_q - t_k|, and their logarithm is the exponent of an fp32 number.
    EXPECT_EQ(count(part, "MUFU"), (are_integers ? 3 : 2) * scores);  // one function for each form of a tile
    EXPECT_EQ(count(part, "VABSDIFF"), are_integers ? scores : 0);
    EXPECT_EQ(count(part, "I2FP"), are_integers ? scores : 0);
    EXPECT_EQ(count(part, "FLO"), are_integers ? scores : 0);  // the logarithm of integers that are far apart
  }
}

INSTANTIATE_TEST_SUITE_P(Times, HopperForwardLookups, testing::Values(NumberType::int64, NumberType::float32),
                         [](const testing::TestParamInfo<NumberType>& test) {
                           return test.param == NumberType::int64 ? "int64" : "float32";
                         });

}  // namespace
}  // namespace gdpa::gpu
