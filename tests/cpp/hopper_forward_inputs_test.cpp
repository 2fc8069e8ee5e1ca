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
#include "disassemble.h"
#include "gdpa/error.h"
#include "gpu/kernel.h"
#include "gpu_calls.h"
#include "jit/nvrtc.h"
#include "machine_code.h"

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

/// A contiguous tensor of these sizes without an address.
BoundTensor tensor_of(NumberType type, const std::vector<int64_t>& sizes) {
  BoundTensor tensor;
  tensor.type = type;
  tensor.rank = static_cast<int32_t>(sizes.size());
  int64_t stride = 1;
  for (int axis = tensor.rank; axis-- > 0; stride *= tensor.sizes[axis]) {
    tensor.sizes[axis] = sizes[static_cast<std::size_t>(axis)];
    tensor.strides[axis] = stride;
  }
  return tensor;
}

std::vector<HopperForward> forward_kernels(const Problem& problem, const Activation& activation, Params params = {}) {
  params.scale = 0.125;
  const GpuPlan plan = TestCall{.problem = problem, .activation = activation, .params = params}.plan();
  std::vector<HopperForward> kernels;
  for (std::size_t i = 0; i < count_of<HopperForward>(plan); ++i) {
    kernels.push_back(gpu::kernel_of<HopperForward>(plan, i));
  }
  return kernels;
}

/// Compiles a kernel, expects no spill and no warning, and returns the machine code of the function, which lies between
/// the wait for S and the wait for P V. Returns an empty text if there is no disassembler.
std::string function_code(const jit::Nvrtc& nvrtc, const HopperForward& kernel, const Activation& activation) {
  const jit::Compiled compiled =
      compile(nvrtc, {Kernel(kernel).source(activation.function()), activation.text()}, "sm_90a");
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
  const Problem problem = problem_of(test.head_dim, test.keys * 10, static_cast<unsigned>(test.type));
  // Rows of an odd number of elements are not aligned. Keys that are not adjacent are not staged.
  const int64_t columns = test.rows == BiasTile::unaligned ? 2047 : 2048;
  Params params;
  params.parameters[0] = tensor_of(test.type, {10, 4, 2048, columns});
  if (test.rows == BiasTile::none) params.parameters[0].strides[3] = 2;
  for (const HopperForward& kernel : forward_kernels(problem, activation, params)) {
    ASSERT_EQ(kernel.bias_tile, test.rows);
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
          test.rows != BiasTile::none && test.type != NumberType::float32 && kernel.query_in_registers;
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
  const HopperForward kernel = forward_kernels(problem_of(128, 20480, 0), list).front();
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
  Params params;
  params.parameters[0] = tensor_of(NumberType::float32, {4, 64});
  params.parameters[1] = params.parameters[2] = tensor_of(GetParam(), {20480});
  // The second pass seldom computes anything.
  const HopperForward kernel = forward_kernels(problem_of(128, 20480, types), activation, params).front();
  ASSERT_TRUE(kernel.stages_lookups);
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
