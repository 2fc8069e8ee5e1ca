// The Hopper kernel for the gradients of tensors compiles without spills and without warnings about serialised
// products, with both NVRTCs. The terms of a key tile lie between its products and the next wait, so that products run
// at the same time. Elements that many scores share have no addition in global memory for each score. The test needs no
// GPU.
#include <gtest/gtest.h>

#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
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

struct Tensor {
  const char* name;
  std::vector<int64_t> sizes;
  NumberType type = NumberType::float32;
};

struct Case {
  std::string name;
  const char* function;
  std::vector<Tensor> tensors;
  int tanhs;  ///< for each score
  int64_t head_dim = 128;
  int64_t head_dim_v = 128;
  DType dtype = DType::bfloat16;
  Accuracy accuracy = Accuracy::fast;
  bool deterministic = false;
  bool spreads_terms = false;  ///< over one element each
  /// Otherwise: in global memory, at the end of a tile of queries and for the diagonals of a tile of keys.
  int most_additions = 36;
};

std::ostream& operator<<(std::ostream& stream, const Case& test) { return stream << test.name; }

/// The tensors of floating-point numbers.
unsigned wanted_of(const Case& test) {
  unsigned wanted = 0;
  for (std::size_t i = 0; i < test.tensors.size(); ++i) {
    const NumberType type = test.tensors[i].type;
    if (type != NumberType::int32 && type != NumberType::int64) wanted |= 1U << i;
  }
  return wanted;
}

/// The kernel of 128 sequences of 2048 tokens.
HopperParameterGradients kernel_of(const Case& test, const Activation& activation) {
  Problem problem;
  problem.direction = Direction::backward;
  problem.dtype = test.dtype;
  problem.batch = 128;
  problem.heads_q = problem.heads_k = 4;
  problem.head_dim = test.head_dim;
  problem.head_dim_v = test.head_dim_v;
  problem.rows_q = problem.rows_k = 2048 * problem.batch;
  problem.accuracy = test.accuracy;
  problem.deterministic = test.deterministic;
  problem.wanted.parameters = wanted_of(test);
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
    problem.tensor_types |= static_cast<unsigned>(tensor.type) << (4 * i);
  }
  problem.wanted.query = problem.wanted.key = problem.wanted.value = false;
  return gpu::kernel_of<HopperParameterGradients>(
      TestCall{.problem = problem, .activation = activation, .params = params}.plan());
}

class HopperParameterGradientsTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    try {
      compilers();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    std::vector<std::string> names;
    for (const Tensor& tensor : GetParam().tensors) names.emplace_back(tensor.name);
    const Activation activation(GetParam().function, {}, names);
    kernel_ = kernel_of(GetParam(), activation);
    for (const jit::Nvrtc& nvrtc : compilers()) {
      compiled_.push_back(compile(nvrtc, {Kernel(kernel_).source(activation.function()), activation.text()}, "sm_90a"));
    }
  }

  HopperParameterGradients kernel_;
  std::vector<jit::Compiled> compiled_;
};

TEST_P(HopperParameterGradientsTest, KeepsEverythingInRegistersAndItsTermsRunWhileProductsDo) {
  const Case& test = GetParam();
  for (const jit::Compiled& compiled : compiled_) {
    EXPECT_TRUE(has_no_spill(compiled)) << compiled.log;
    EXPECT_NE(compiled.log.find(" 0 bytes stack frame"), std::string::npos) << compiled.log;
    EXPECT_FALSE(has_warning(compiled)) << compiled.log;
    if (disassembler().empty()) continue;
    const std::string code = disassemble(compiled.cubin);
    for (const char* instruction : {"HGMMA", "UTMALDG", "USETMAXREG"}) EXPECT_GT(count(code, instruction), 0);
    // The first wait begins the loop, and the second one follows the loop.
    const auto waits = waits_for_products(code);
    ASSERT_EQ(waits.size(), 2U);
    EXPECT_EQ(waits[0].second, '0');
    EXPECT_EQ(waits[1].second, '0');
    const std::string_view loop = std::string_view(code).substr(waits[0].first, waits[1].first - waits[0].first);
    const std::string_view terms = loop.substr(loop.rfind("HGMMA"));
    // The code has two versions of the terms: of full tiles of keys, and of partial ones.
    const int scores = 2 * kernel_.tile_keys / 2;
    EXPECT_EQ(count(terms, "MUFU.TANH"), test.tanhs * scores);
    EXPECT_EQ(count(code, "MUFU.TANH"), test.tanhs * scores);
    const int pairs = count(code, "REDG.E.ADD.F32x2");
    EXPECT_EQ(pairs, test.spreads_terms ? kernel_.tile_keys / 4 : 0) << "one addition for two scores";
    EXPECT_EQ(count(code, "REDG.E.ADD.F32.FTZ"), test.spreads_terms ? kernel_.tile_keys / 2 : 0) << "of partial tiles";
    if (test.spreads_terms) continue;
    EXPECT_LE(count(code, "REDG") + count(code, "ATOM"), test.most_additions) << "none for each score";
  }
}

const std::vector<Tensor> numbers = {{"a", {4}}, {"b", {4}}};
const std::vector<Tensor> table = {{"table", {4, 4096}}};
constexpr NumberType int64 = NumberType::int64;
std::vector<Tensor> buckets(int64_t count) {
  return {{"w", {4, count}}, {"t_q", {262144}, int64}, {"t_k", {262144}, int64}};
}
const std::vector<Tensor> bias = {{"bias", {1, 4, 2048, 2048}, NumberType::bfloat16}};
constexpr const char* of_numbers = "a * s * sigmoid(b * s)";
constexpr const char* of_table = "silu(s + table[head, clamp(q_idx - kv_idx, 0, 4095)])";
constexpr const char* of_buckets = "silu(s + w[head, clamp(floor(log2(1 + abs(t_q[q_row] - t_k[kv_row]))), 0, 127)])";
constexpr const char* of_bias = "silu(s + bias[batch, head, q_idx, kv_idx])";
constexpr DType fp16 = DType::float16;

/// A case of bfloat16 or float16 operands, fast.
Case fast_case(std::string name, const char* function, std::vector<Tensor> tensors, int64_t head_dim = 128,
               int64_t head_dim_v = 128, DType dtype = DType::bfloat16) {
  return {.name = std::move(name),
          .function = function,
          .tensors = std::move(tensors),
          .tanhs = 1,
          .head_dim = head_dim,
          .head_dim_v = head_dim_v,
          .dtype = dtype,
          .spreads_terms = function == of_bias};
}

/// The same with exact functions, which are not instructions.
Case exact_case(std::string name, const char* function, std::vector<Tensor> tensors, int64_t head_dim = 128,
                int64_t head_dim_v = 128, bool deterministic = false) {
  Case of = fast_case(std::move(name), function, std::move(tensors), head_dim, head_dim_v, fp16);
  of.tanhs = 0;
  of.accuracy = Accuracy::exact;
  of.deterministic = deterministic;
  return of;
}

/// Too many elements for sums of each thread: the lanes of a warp that have the same element are added up.
Case many_buckets() {
  Case of = fast_case("many_buckets", of_buckets, buckets(129));
  of.most_additions = 1000;
  return of;
}

INSTANTIATE_TEST_SUITE_P(
    Plans, HopperParameterGradientsTest,
    testing::Values(fast_case("numbers", of_numbers, numbers),
                    fast_case("numbers_fp16", of_numbers, numbers, 64, 128, fp16),
                    exact_case("numbers_exact", of_numbers, numbers, 40, 72),
                    fast_case("numbers_wide", of_numbers, numbers, 256, 256), fast_case("table", of_table, table),
                    fast_case("table_wide", of_table, table, 192, 256),
                    exact_case("table_deterministic", of_table, table, 64, 64, true),
                    fast_case("buckets", of_buckets, buckets(64)),
                    fast_case("buckets_narrow", of_buckets, buckets(10), 64, 64),
                    fast_case("buckets_wide", of_buckets, buckets(64), 256, 256),
                    fast_case("more_buckets", of_buckets, buckets(128)), many_buckets(),
                    exact_case("buckets_exact", of_buckets, buckets(64)), fast_case("bias", of_bias, bias),
                    fast_case("bias_fp16", of_bias, bias, 96, 64, fp16), exact_case("bias_exact", of_bias, bias),
                    fast_case("bias_wide", of_bias, bias, 256, 128)),
    [](const testing::TestParamInfo<Case>& tested) { return tested.param.name; });

}  // namespace
}  // namespace gdpa::gpu
