// Hopper's backward kernels that compute gradients of tensors compile without spills and without warnings about
// serialised products, with both NVRTCs. They have the waits of the kernels without these gradients, apart from the
// wait for dP of numbers of the head, whose terms have few instructions. The diagonals of a table need no addition for
// each score. Three cases spill a few registers, and have a bound for the bytes. The test needs no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "compilers.h"
#include "disassemble.h"
#include "gdpa/error.h"
#include "gpu/kernel.h"
#include "gpu/parameter_sums.h"
#include "gpu_calls.h"
#include "jit/nvrtc.h"
#include "machine_code.h"

namespace gdpa::gpu {
namespace {

struct Tensor {
  const char* name;
  std::vector<int64_t> sizes;
  NumberType type = NumberType::float32;
};

struct Case {
  std::string name;
  const char* function;
  std::vector<Tensor> tensors;
  int most_additions;  ///< in the code, in global memory
  int64_t head_dim = 128;
  DType dtype = DType::bfloat16;
  bool deterministic = false;
  int64_t heads_k = 4;
  int arithmetic = 0;    ///< instructions in fp32 for each score with gradients of numbers; 0: not counted
  int most_spilled = 0;  ///< spilled_bytes() of the first pass; the notebook of score expressions names the causes
};

std::ostream& operator<<(std::ostream& stream, const Case& test) { return stream << test.name; }

class HopperBackwardGradients : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    try {
      compilers();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    std::vector<std::string> names;
    for (const Tensor& tensor : GetParam().tensors) names.emplace_back(tensor.name);
    activation_ = Activation(GetParam().function, {}, names);
  }

  /// The kernels of 128 sequences of 2048 tokens.
  GpuPlan plan() const {
    const Case& test = GetParam();
    Problem problem;
    problem.direction = Direction::backward;
    problem.dtype = test.dtype;
    problem.batch = 128;
    problem.heads_q = 4;
    problem.heads_k = test.heads_k;
    problem.head_dim = problem.head_dim_v = test.head_dim;
    problem.rows_q = problem.rows_k = 2048 * problem.batch;
    problem.deterministic = test.deterministic;
    Params params;
    for (std::size_t i = 0; i < test.tensors.size(); ++i) {
      BoundTensor tensor;
      tensor.type = test.tensors[i].type;
      tensor.rank = static_cast<int>(test.tensors[i].sizes.size());
      int64_t stride = 1;
      for (int axis = tensor.rank; axis-- > 0;) {
        tensor.sizes[axis] = test.tensors[i].sizes[static_cast<std::size_t>(axis)];
        tensor.strides[axis] = stride;
        stride *= tensor.sizes[axis];
      }
      params.parameters[i] = params.grad_parameters[i] = tensor;
      if (tensor.type != NumberType::int64) problem.wanted.parameters |= 1U << i;
      problem.tensor_types |= static_cast<unsigned>(tensor.type) << (4 * i);
      if (elements_of(tensor) > 1 << 30) problem.tensor_types |= 8U << (4 * i);  // offsets of 64 bits
    }
    return TestCall{.problem = problem, .activation = activation_, .params = params}.plan();
  }

  Activation activation_{"identity"};
};

TEST_P(HopperBackwardGradients, KeepEverythingInRegistersAndNoProductWaits) {
  const Case& test = GetParam();
  const GpuPlan plan = this->plan();
  const std::vector<std::string> names = names_of(plan);
  EXPECT_EQ(std::ranges::count(names, "parameter_gradients"), 0) << "backward computes all gradients";
  EXPECT_EQ(std::ranges::count(names, "complete_terms"), is_term(plan.parameters.sum) ? 1 : 0);
  for (const Launch* launch : kernels_of(plan)) {
    const auto* const kernel = launch->as<HopperBackward>();
    if (kernel == nullptr) continue;
    for (const jit::Nvrtc& nvrtc : compilers()) {
      const jit::Compiled compiled =
          compile(nvrtc, {launch->kernel().source(activation_.function()), activation_.text()}, "sm_90a");
      EXPECT_FALSE(has_warning(compiled)) << compiled.log;
      // The second pass, which seldom runs, has two forms of the function.
      const bool is_second = kernel->pass == hopper::Pass::second;
      const int spilled = spilled_bytes(compiled);
      EXPECT_TRUE(is_second || (spilled >= 0 && spilled <= test.most_spilled)) << spilled << " bytes\n" << compiled.log;
      if (disassembler().empty() || is_second) continue;
      const std::string code = disassemble(compiled.cubin);
      const auto waits = waits_for_products(code);
      std::string left;
      for (const auto& wait : waits) left += wait.second;
      const bool are_of_numbers = kernel->gradients == FusedGradients::of_numbers;
      ASSERT_EQ(left, are_of_numbers ? "01101000" : "1011101000");
      // Those of semaphores are S32.
      EXPECT_LE(count(code, "REDG.E.ADD.F") + count(code, "REDG.E.ADD.64"), test.most_additions);
      if (test.arithmetic == 0) continue;
      // Between the wait for S and dP and the next wait. The code has two versions: of full tiles and of partial ones.
      const std::string_view part = std::string_view(code).substr(waits[3].first, waits[4].first - waits[3].first);
      constexpr int scores = 2 * 32;
      EXPECT_EQ((count(part, "FMUL") + count(part, "FFMA") + count(part, "FADD")) / scores, test.arithmetic);
    }
  }
}

const std::vector<Tensor> numbers = {{"a", {4}}, {"b", {4}}};
constexpr const char* of_numbers = "a * s * sigmoid(b * s)";
const std::vector<Tensor> table = {{"table", {4, 4096}}};
constexpr const char* of_table = "silu(s + table[head, clamp(q_idx - kv_idx, 0, 4095)])";
const std::vector<Tensor> bias = {{"bias", {1, 4, 2048, 2048}, NumberType::bfloat16}};
const std::vector<Tensor> bias_of_entries = {{"bias", {128, 4, 2048, 2048}, NumberType::bfloat16}};
const std::vector<Tensor> short_bias = {{"bias", {128, 4, 512, 512}, NumberType::bfloat16}};
constexpr const char* of_bias = "silu(s + bias[batch, head, q_idx, kv_idx])";
const std::vector<Tensor> buckets = {
    {"w", {4, 64}}, {"t_q", {128 * 2048}, NumberType::int64}, {"t_k", {128 * 2048}, NumberType::int64}};
constexpr const char* of_buckets = "silu(s + w[head, clamp(floor(log2(1 + abs(t_q[q_row] - t_k[kv_row]))), 0, 63)])";
constexpr DType fp16 = DType::float16, bf16 = DType::bfloat16;
constexpr int exact_additions = 60;  // of one exact sum

INSTANTIATE_TEST_SUITE_P(
    Plans, HopperBackwardGradients,
    testing::Values(Case{"numbers", of_numbers, numbers, 4, 128, bf16, false, 4, 8},
                    Case{"numbers_of_groups", of_numbers, numbers, 4, 128, bf16, false, 2},
                    Case{"numbers_fp16", of_numbers, numbers, 4, 64, fp16},
                    Case{"numbers_deterministic", of_numbers, numbers, 4 * exact_additions, 128, bf16, true},
                    Case{"three_numbers", "b * tanh(a * s) + c", {{"a", {}}, {"b", {4}}, {"c", {4}}}, 6},
                    Case{"table", of_table, table, 12}, Case{"table_fp16", of_table, table, 12, 64, fp16},
                    Case{"table_deterministic", of_table, table, 12 * exact_additions, 128, bf16, true},
                    Case{"bias", of_bias, bias, 128}, Case{"bias_fp16", of_bias, bias, 128, 64, fp16},
                    Case{"bias_stored", of_bias, bias_of_entries, 128, 128, bf16, false, 4, 0, 124},
                    Case{"bias_stored_short", of_bias, short_bias, 128, 128, bf16, false, 4, 0, 128},
                    Case{"bias_stored_fp16", of_bias, short_bias, 128, 64, fp16},
                    Case{"buckets", of_buckets, buckets, 140, 128, bf16, false, 4, 0, 188},
                    Case{"buckets_narrow", of_buckets, buckets, 140, 64},
                    Case{"number_in_a_sum", "silu(s + a)", {{"a", {4}}}, 4}),
    [](const testing::TestParamInfo<Case>& tested) { return tested.param.name; });

}  // namespace
}  // namespace gdpa::gpu
