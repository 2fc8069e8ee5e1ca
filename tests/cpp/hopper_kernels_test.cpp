// The Hopper kernels compile without spills and without warnings about serialised products, forward with the newest
// NVRTC and backward also with the oldest NVRTC. They multiply with WGMMA and copy with TMA. The function lies between
// two waits for products, so that products run at the same time, and it has as few instructions as its formula. The
// test needs no GPU.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compilers.h"
#include "disassemble.h"
#include "gdpa/error.h"
#include "gpu/kernel.h"
#include "gpu/plan.h"
#include "gpu_calls.h"
#include "jit/nvrtc.h"
#include "machine_code.h"

namespace gdpa::gpu {
namespace {

struct Case {
  DType dtype;
  int64_t head_dim;
  int64_t head_dim_v;
  int64_t mean_keys;
  const char* function;
  int tanhs;            ///< for each score
  int arithmetic;       ///< other instructions in fp32
  int bounds;           ///< those more that the pass takes which assumes nothing of the scores
  int64_t queries = 0;  ///< of each sequence; 0: of some more, of others fewer
  OutScale::Kind out_scale = OutScale::Kind::number;
  int64_t page_rows = 0;
};

std::ostream& operator<<(std::ostream& stream, const Case& test) {
  return stream << test.head_dim << " x " << test.head_dim_v << ", " << test.mean_keys << " keys, " << test.function
                << (test.out_scale == OutScale::Kind::per_row ? ", scaled rows" : "")
                << (test.page_rows > 0 ? fmt::format(", pages of {}", test.page_rows) : "");
}

/// The scale of the calls.
Params scaled() {
  Params params;
  params.scale = 0.125;
  return params;
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
    problem.out_scale = GetParam().out_scale;
    if (GetParam().queries > 0) {
      problem.query_form = Form::dense;
      problem.rows_q = GetParam().queries * problem.batch;
    }
    problem.page_rows = GetParam().page_rows;
    if (problem.has_pages()) problem.key_form = Form::dense;
    const Activation activation(GetParam().function);
    const GpuPlan plan = TestCall{.problem = problem, .activation = activation, .params = scaled()}.plan();
    ASSERT_EQ(count_of<HopperForward>(plan), GetParam().bounds > 0 ? 2U : 1U) << plan.reason;
    for (const Launch* launch : kernels_of(plan)) {
      kernel_ = *launch->as<HopperForward>();
      passes_.push_back(
          compile(*nvrtc_, {launch->kernel().source(activation.function()), activation.text()}, "sm_90a"));
    }
  }

  std::optional<jit::Nvrtc> nvrtc_;
  HopperForward kernel_;
  std::vector<jit::Compiled> passes_;
};

TEST_P(HopperKernels, KeepEverythingInRegistersAndNoProductWaits) {
  for (const jit::Compiled& pass : passes_) {
    EXPECT_TRUE(has_no_spill(pass)) << pass.log;
    EXPECT_FALSE(has_warning(pass)) << pass.log;
  }
}

TEST_P(HopperKernels, TheFunctionRunsWhileTheProductsDo) {
  if (disassembler().empty()) GTEST_SKIP() << "no nvdisasm: set GDPA_SITE_PACKAGES to a folder that holds triton";
  const int scores = kernel_.tile_keys / 2;
  const Case& test = GetParam();
  for (std::size_t pass = 0; pass < passes_.size(); ++pass) {
    const std::string code = disassemble(passes_[pass].cubin);
    for (const char* instruction : {"HGMMA", "UTMALDG", "USETMAXREG"}) {
      EXPECT_NE(code.find(instruction), std::string::npos) << instruction;
    }
    // A TMA store reads O from the buffer of Q. If Q stays in this buffer, each thread stores 16 bytes of O.
    EXPECT_EQ(code.find("UTMASTG") != std::string::npos, kernel_.query_in_registers);
    // Between the wait for Q K^T and the wait for P V, for each score that a thread holds.
    const std::size_t begin = code.find("WARPGROUP.DEPBAR.LE gsb0, 0x1"),
                      end = code.find("WARPGROUP.DEPBAR.LE gsb0, 0x0", begin);
    ASSERT_NE(begin, std::string::npos);
    ASSERT_NE(end, std::string::npos);
    const std::string_view part = std::string_view(code).substr(begin, end - begin);
    EXPECT_EQ(count(part, "MUFU.TANH "), test.tanhs * scores);
    // The scale of all scores, one more product, may be computed here.
    const int arithmetic = count(part, "FMUL ") + count(part, "FFMA ") + count(part, "FADD ") + count(part, "FMNMX");
    EXPECT_EQ(arithmetic / scores, test.arithmetic + (pass > 0 ? test.bounds : 0)) << arithmetic;
    EXPECT_LE(arithmetic % scores, 1) << arithmetic;
    // max(x, 0) is a part of the rounding to 16 bits.
    EXPECT_EQ(code.find("F2FP.RELU") != std::string::npos, std::string(test.function) == "relu");
  }
}

TEST_P(HopperKernels, DescriptorsAreInUniformRegisters) {
  if (disassembler().empty()) GTEST_SKIP() << "no nvdisasm: set GDPA_SITE_PACKAGES to a folder that holds triton";
  // Instructions between two products, if there are few: not a wait or a store.
  constexpr std::size_t most_bytes = 2500;
  for (const jit::Compiled& pass : passes_) {
    const std::string code = disassemble(pass.cubin);
    int moves = 0;
    for (std::size_t product = code.find("HGMMA"); product != std::string::npos;) {
      const std::size_t next = code.find("HGMMA", product + 1);
      if (next != std::string::npos && next - product < most_bytes) {
        moves += count(std::string_view(code).substr(product, next - product), "R2UR");
      }
      product = next;
    }
    EXPECT_EQ(moves, 0) << "a product waits until its descriptor has moved from vector registers";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Plans, HopperKernels,
    testing::Values(
        Case{DType::bfloat16, 128, 128, 2048, "gelu_tanh", 1, 3, 1},
        Case{DType::bfloat16, 128, 128, 256, "silu", 1, 1, 1}, Case{DType::float16, 128, 128, 2048, "gelu", 1, 6, 1},
        Case{DType::bfloat16, 64, 64, 2048, "gelu_tanh", 1, 3, 1}, Case{DType::bfloat16, 64, 64, 256, "gelu", 1, 5, 1},
        Case{DType::float16, 96, 64, 2048, "silu", 1, 2, 1}, Case{DType::bfloat16, 40, 72, 2048, "tanh", 1, 1, 0},
        Case{DType::bfloat16, 128, 128, 2048, "relu", 0, 0, 0}, Case{DType::float16, 64, 64, 2048, "relu", 0, 1, 0},
        Case{DType::bfloat16, 64, 64, 256, "relu2", 0, 2, 0},
        Case{DType::bfloat16, 128, 128, 2048, "s * exp(-s * s)", 0, 3, 0},
        Case{DType::bfloat16, 128, 128, 2048, "gelu_tanh", 1, 3, 1, 32},
        Case{DType::bfloat16, 64, 64, 2048, "gelu_tanh", 1, 3, 1, 64},
        Case{DType::bfloat16, 64, 64, 2048, "silu", 1, 1, 1, 64},
        Case{DType::bfloat16, 72, 128, 50, "tanh", 1, 1, 0, 4},
        Case{DType::bfloat16, 192, 192, 2048, "gelu_tanh", 1, 3, 1},
        Case{DType::float16, 160, 160, 128, "gelu", 1, 6, 1}, Case{DType::bfloat16, 192, 128, 2048, "silu", 1, 1, 1},
        Case{DType::float16, 136, 200, 2048, "tanh", 1, 1, 0}, Case{DType::bfloat16, 128, 256, 2048, "gelu", 1, 6, 1},
        Case{DType::bfloat16, 256, 64, 2048, "silu", 1, 1, 1}, Case{DType::bfloat16, 256, 256, 2048, "gelu", 1, 6, 1},
        Case{DType::float16, 256, 256, 128, "gelu_tanh", 1, 4, 1},
        Case{DType::bfloat16, 128, 128, 2048, "silu", 1, 1, 1, 0, OutScale::Kind::per_row},
        Case{DType::float16, 256, 256, 2048, "gelu", 1, 6, 1, 0, OutScale::Kind::per_row},
        Case{DType::bfloat16, 128, 128, 2048, "silu", 1, 1, 1, 0, OutScale::Kind::number, 64},
        Case{DType::float16, 64, 64, 2048, "gelu", 1, 6, 1, 0, OutScale::Kind::number, 16},
        Case{DType::bfloat16, 256, 256, 2048, "gelu", 1, 6, 1, 0, OutScale::Kind::number, 48},
        Case{DType::bfloat16, 128, 128, 2048, "gelu_tanh", 1, 3, 1, 32, OutScale::Kind::number, 256}));

// --- backward --------------------------------------------------------------------------------------------------------

const Mask causal = Mask::causal();

struct BackwardOptions {
  Form key_form = Form::jagged;
  bool deterministic = false;
  Mask mask = {};
  int64_t queries = 2048;  ///< of each sequence, on average
  WantedGradients wanted = {};
  std::vector<std::string> numbers = {};  ///< of the head, which the function reads
  bool has_batch_map = false;
  OutScale::Kind out_scale = OutScale::Kind::number;
  int64_t keys = 2048;  ///< of each sequence, on average
};

/// At most 64 keys, which one consumer has.
BackwardOptions few_keys(Form form) { return {.key_form = form, .keys = 64}; }

/// Those of f and f', for each score.
struct Instructions {
  int special;     ///< MUFU
  int arithmetic;  ///< other instructions in fp32
};

struct BackwardCase {
  DType dtype;
  int64_t head_dim;
  int64_t head_dim_v;
  const char* function;
  Accuracy accuracy;
  Instructions first;                      ///< of the only pass, or the first
  std::optional<Instructions> again = {};  ///< of the second, which has both forms of f, as far as they differ
  BackwardOptions options = {};
};

std::ostream& operator<<(std::ostream& stream, const BackwardCase& test) {
  return stream << test.head_dim << " x " << test.head_dim_v << ", " << test.function
                << (test.accuracy == Accuracy::fast ? ", fast" : ", exact")
                << (test.options.key_form == Form::shared ? ", shared keys" : "")
                << (test.options.deterministic ? ", deterministic" : "")
                << (test.options.has_batch_map ? ", batch map" : "")
                << (test.options.out_scale == OutScale::Kind::number ? "" : ", out_scale of each entry")
                << (test.options.mask.keeps_all() ? "" : ", causal") << ", " << test.options.queries << " queries, "
                << test.options.keys << " keys";
}

/// The kernels of backward for such a problem, in the order in which they run.
std::vector<Kernel> backward_kernels(DType dtype, int64_t head_dim, int64_t head_dim_v, const Activation& activation,
                                     Accuracy accuracy = Accuracy::fast, BackwardOptions options = {}) {
  Problem problem;
  problem.direction = Direction::backward;
  problem.dtype = dtype;
  problem.batch = 10;
  problem.key_form = options.key_form;
  problem.deterministic = options.deterministic;
  problem.mask = options.mask;
  problem.wanted = options.wanted;
  problem.out_scale = options.out_scale;
  problem.has_batch_map = options.has_batch_map;
  if (options.has_batch_map) problem.mapped_entries = 5;
  problem.accuracy = accuracy;
  problem.heads_q = problem.heads_k = 4;
  problem.head_dim = head_dim;
  problem.head_dim_v = head_dim_v;
  problem.rows_q = options.queries * problem.batch;
  problem.rows_k = options.keys * (options.key_form == Form::shared ? 1 : problem.batch);
  const GpuPlan plan = TestCall{.problem = problem, .activation = activation, .params = scaled()}.plan();
  std::vector<Kernel> kernels;
  for (const Launch* launch : kernels_of(plan)) {
    if (launch->as<Reduce>() != nullptr) continue;
    if (launch->kernel().names().name == "group_entries") continue;
    EXPECT_EQ(launch->kernel().names().family, "hopper") << plan.reason;
    kernels.push_back(launch->kernel());
  }
  return kernels;
}

jit::Compiled compile(const jit::Nvrtc& nvrtc, const Kernel& kernel, const Activation& activation) {
  return gpu::compile(nvrtc, {kernel.source(activation.function()), activation.text()}, "sm_90a");
}

class HopperBackwardKernel : public testing::TestWithParam<BackwardCase> {
 protected:
  /// Calls visit(compiled, kernel, instructions) for each pass and NVRTC.
  template <class Visit>
  void visit_compiled(Visit visit) const {
    const BackwardCase& test = GetParam();
    const Activation activation(test.function, {}, test.options.numbers);
    try {
      compilers();
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    std::vector<Instructions> instructions = {test.first};
    if (test.again) instructions.push_back(*test.again);
    std::size_t pass = 0;
    for (const Kernel& kernel :
         backward_kernels(test.dtype, test.head_dim, test.head_dim_v, activation, test.accuracy, test.options)) {
      if (!kernel.reads_function()) continue;
      ASSERT_LT(pass, instructions.size());
      for (const jit::Nvrtc& nvrtc : compilers()) {
        SCOPED_TRACE(fmt::format("NVRTC {}, pass {}", nvrtc.version(), pass));
        visit(compile(nvrtc, kernel, activation), kernel, instructions[pass]);
      }
      ++pass;
    }
    EXPECT_EQ(pass, instructions.size());
  }
};

TEST_P(HopperBackwardKernel, KeepsEverythingInRegistersAndItsFunctionRunsWhileProductsDo) {
  visit_compiled([](const jit::Compiled& compiled, const Kernel& of_pass, const Instructions& instructions) {
    const HopperBackward& kernel = *of_pass.as<HopperBackward>();
    EXPECT_TRUE(has_no_spill(compiled)) << compiled.log;
    EXPECT_NE(compiled.log.find(" 0 bytes stack frame"), std::string::npos) << compiled.log;
    EXPECT_FALSE(has_warning(compiled)) << compiled.log;
    if (disassembler().empty()) return;
    const std::string code = disassemble(compiled.cubin);
    for (const char* instruction : {"HGMMA", "UTMALDG", "USETMAXREG", "UBLKRED", "UTMASTG", "UTMAREDG"}) {
      EXPECT_GT(count(code, instruction), 0) << instruction;  // dQ leaves by the copy engine in each of these ways
    }
    EXPECT_EQ(count(code, "UBLKCP") > 0, kernel.tile_keys == 128)
        << "the first writer stores accumulators, and the last writer loads them; 64 keys have one writer";
    // Before the loop, the waits are for S and dP of the first step. In the loop, they are for dV and dK (which
    // releases Q and dO), for dQ, for S and for dP. A single step waits for dV and dK, for dQ of the preceding step,
    // and for its own dQ. After the loop, the wait is for the last dQ. With 128 queries, S and dP have two parts, and S
    // of the second part runs at the same time as dP of the first part. A further wait would run products one after
    // another. With 64 keys, the code begins with the loop of the second consumer, which waits for dQ only.
    const auto waits = waits_for_products(code);
    std::string left;
    for (const auto& wait : waits) left += wait.second;
    const std::string of_second_consumer = kernel.tile_keys == 64 ? "0" : "";
    const std::string score_waits = kernel.tile_queries == 128 ? "1110" : "10";
    ASSERT_EQ(left, of_second_consumer + score_waits + "11" + score_waits + "1000");
    // Between each wait for S and that for dP, in both places: the whole function, for a part of the scores of a
    // thread.
    constexpr int scores = 32;
    std::vector<std::size_t> waits_for_scores;
    for (const std::size_t begin : {std::size_t{0}, score_waits.size() + 2}) {
      for (std::size_t part = 0; part < score_waits.size(); part += 2) {
        waits_for_scores.push_back(of_second_consumer.size() + begin + part);
      }
    }
    for (const std::size_t wait_for_scores : waits_for_scores) {
      const std::size_t begin = waits[wait_for_scores].first, end = waits[wait_for_scores + 1].first;
      const std::string_view part = std::string_view(code).substr(begin, end - begin);
      EXPECT_EQ(count(part, "MUFU"), instructions.special * scores);
      const int in_fp32 = count(part, "FMUL") + count(part, "FFMA") + count(part, "FADD") + count(part, "FMNMX");
      EXPECT_EQ(in_fp32 / scores, instructions.arithmetic) << in_fp32 % scores << " more are not of each score";
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Plans, HopperBackwardKernel,
    testing::Values(
        BackwardCase{DType::bfloat16, 128, 128, "gelu_tanh", Accuracy::fast, {1, 8}, {{2, 20}}},
        BackwardCase{DType::float16, 128, 128, "gelu_tanh", Accuracy::exact, {2, 18}, {{4, 38}}},
        BackwardCase{DType::bfloat16, 128, 128, "silu", Accuracy::fast, {1, 4}, {{1, 10}}},
        BackwardCase{DType::bfloat16, 128, 128, "relu", Accuracy::fast, {0, 0}},
        BackwardCase{DType::float16, 128, 128, "gelu", Accuracy::fast, {2, 10}, {{4, 24}}},
        BackwardCase{DType::bfloat16, 128, 128, "gelu", Accuracy::fast, {2, 9}, {{2, 16}}},
        BackwardCase{DType::bfloat16, 64, 64, "gelu_tanh", Accuracy::fast, {1, 8}, {{2, 20}}},
        BackwardCase{DType::float16, 64, 64, "gelu", Accuracy::exact, {2, 21}, {{2, 25}}},
        BackwardCase{DType::bfloat16, 32, 48, "silu", Accuracy::fast, {1, 4}, {{1, 10}}},
        BackwardCase{
            DType::bfloat16, 64, 64, "gelu_tanh", Accuracy::fast, {1, 8}, {{2, 20}}, {Form::jagged, true, {}, 511}},
        BackwardCase{DType::bfloat16, 64, 64, "silu", Accuracy::fast, {1, 4}, {{1, 10}}, {Form::shared}},
        BackwardCase{DType::float16, 64, 64, "silu", Accuracy::exact, {2, 13}, {{2, 17}}},
        BackwardCase{DType::bfloat16, 64, 64, "relu", Accuracy::exact, {0, 1}},
        BackwardCase{DType::float16, 96, 64, "gelu", Accuracy::exact, {2, 21}, {{2, 25}}},
        BackwardCase{DType::bfloat16, 96, 64, "identity", Accuracy::fast, {0, 0}},
        BackwardCase{DType::bfloat16, 128, 128, "gelu", Accuracy::exact, {2, 21}, {{2, 25}}},
        BackwardCase{DType::bfloat16, 128, 128, "identity", Accuracy::fast, {0, 0}},
        BackwardCase{DType::float16, 64, 64, "identity", Accuracy::fast, {0, 1}},
        BackwardCase{DType::bfloat16, 40, 72, "gelu_tanh", Accuracy::fast, {1, 8}, {{2, 20}}},
        BackwardCase{DType::float16, 40, 72, "silu", Accuracy::fast, {1, 5}, {{1, 9}}},
        BackwardCase{DType::bfloat16, 64, 96, "relu", Accuracy::fast, {0, 0}},
        BackwardCase{DType::bfloat16, 128, 128, "gelu_tanh", Accuracy::fast, {1, 8}, {{2, 20}}, {Form::shared}},
        BackwardCase{DType::float16, 40, 72, "relu", Accuracy::fast, {0, 1}, {}, {Form::shared}},
        BackwardCase{DType::bfloat16, 128, 128, "gelu_tanh", Accuracy::fast, {1, 8}, {{2, 20}}, {Form::jagged, true}},
        BackwardCase{DType::float16, 64, 64, "relu", Accuracy::exact, {0, 1}, {}, {Form::jagged, true}},
        BackwardCase{
            DType::bfloat16, 128, 128, "gelu_tanh", Accuracy::fast, {1, 8}, {{2, 20}}, {Form::jagged, false, causal}},
        BackwardCase{
            DType::bfloat16, 128, 128, "silu", Accuracy::fast, {1, 4}, {{1, 10}}, {Form::jagged, true, causal}},
        BackwardCase{
            DType::bfloat16, 128, 128, "a * s * sigmoid(b * s)", Accuracy::fast, {1, 4}, {}, {.numbers = {"a", "b"}}},
        BackwardCase{
            DType::bfloat16, 128, 128, "gelu_tanh", Accuracy::fast, {1, 8}, {{2, 20}}, {.has_batch_map = true}},
        BackwardCase{DType::float16,
                     128,
                     128,
                     "gelu",
                     Accuracy::exact,
                     {2, 21},
                     {{2, 25}},
                     {.deterministic = true, .mask = causal, .has_batch_map = true}},
        BackwardCase{DType::bfloat16,
                     128,
                     128,
                     "silu",
                     Accuracy::fast,
                     {1, 5},
                     {{1, 11}},
                     {.has_batch_map = true, .out_scale = OutScale::Kind::reciprocal_length_q}},
        BackwardCase{DType::float16,
                     128,
                     128,
                     "gelu",
                     Accuracy::exact,
                     {2, 22},
                     {{2, 26}},
                     {.mask = causal, .has_batch_map = true, .out_scale = OutScale::Kind::per_batch}},
        BackwardCase{DType::bfloat16, 64, 64, "gelu_tanh", Accuracy::fast, {1, 8}, {{2, 20}}, {.has_batch_map = true}},
        BackwardCase{DType::float16,
                     64,
                     64,
                     "gelu",
                     Accuracy::exact,
                     {2, 22},
                     {{2, 26}},
                     {.deterministic = true, .has_batch_map = true, .out_scale = OutScale::Kind::per_batch}},
        BackwardCase{DType::bfloat16, 96, 64, "relu", Accuracy::fast, {0, 0}, {}, {.has_batch_map = true}},
        BackwardCase{DType::bfloat16, 128, 128, "gelu_tanh", Accuracy::fast, {1, 8}, {{2, 20}}, few_keys(Form::shared)},
        BackwardCase{DType::float16, 128, 128, "gelu", Accuracy::exact, {2, 21}, {{2, 25}}, few_keys(Form::shared)},
        BackwardCase{DType::bfloat16, 64, 64, "gelu_tanh", Accuracy::fast, {1, 8}, {{2, 20}}, few_keys(Form::shared)},
        BackwardCase{DType::float16, 64, 64, "gelu", Accuracy::exact, {2, 21}, {{2, 25}}, few_keys(Form::dense)},
        BackwardCase{DType::bfloat16, 96, 64, "silu", Accuracy::fast, {1, 4}, {{1, 10}}, few_keys(Form::dense)}));

/// Of head dims above 128; `arithmetic` is not read.
class HopperWideBackwardKernel : public HopperBackwardKernel {};

TEST_P(HopperWideBackwardKernel, KeepsEverythingInRegistersAndItsFunctionRunsWhileProductsDo) {
  const bool has_two_chunks = GetParam().head_dim > 128;  // of dQ, which a side adds one after the other
  visit_compiled([&](const jit::Compiled& compiled, const Kernel&, const Instructions& instructions) {
    EXPECT_TRUE(has_no_spill(compiled)) << compiled.log;
    EXPECT_NE(compiled.log.find(" 0 bytes stack frame"), std::string::npos) << compiled.log;
    EXPECT_FALSE(has_warning(compiled)) << compiled.log;
    if (disassembler().empty()) return;
    const std::string code = disassemble(compiled.cubin);
    for (const char* instruction : {"HGMMA", "UTMALDG", "USETMAXREG", "REDG.E.ADD.F32x4"}) {
      EXPECT_GT(count(code, instruction), 0) << instruction;
    }
    // The dK warpgroup waits for dP before its loop. In the loop, it waits for dK (which releases Q), for the first
    // chunk of dQ, and for dP and the last chunk of dQ. After the loop, it waits for the same products of the last
    // step. The dV warpgroup waits for S before its loop. In the loop and after it, it waits for S and the first chunk
    // of dQ, for dV, and for the last chunk of dQ.
    const auto waits = waits_for_products(code);
    std::string left;
    for (const auto& wait : waits) left += wait.second;
    ASSERT_EQ(left, has_two_chunks ? "00100000110110" : "0000001010");
    // In the value side's loop the function lies between the wait for S and that for the last of dQ.
    const std::size_t begin = waits[has_two_chunks ? 8 : 6].first, end = waits[has_two_chunks ? 10 : 7].first;
    const std::string_view part = std::string_view(code).substr(begin, end - begin);
    EXPECT_EQ(count(part, "MUFU"), instructions.special * 32);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Plans, HopperWideBackwardKernel,
    testing::Values(BackwardCase{DType::bfloat16, 256, 256, "gelu_tanh", Accuracy::fast, {1, 8}, {{2, 20}}},
                    BackwardCase{DType::bfloat16, 192, 192, "gelu_tanh", Accuracy::fast, {1, 8}, {{2, 20}}},
                    BackwardCase{DType::float16, 256, 256, "gelu", Accuracy::exact, {2, 21}, {{2, 25}}},
                    BackwardCase{DType::bfloat16, 256, 256, "relu", Accuracy::fast, {0, 0}},
                    BackwardCase{DType::float16, 160, 160, "silu", Accuracy::exact, {2, 13}, {{2, 17}}},
                    BackwardCase{DType::bfloat16, 192, 128, "silu", Accuracy::fast, {1, 4}, {{1, 10}}},
                    BackwardCase{DType::bfloat16, 136, 200, "gelu", Accuracy::fast, {2, 9}, {{2, 16}}},
                    BackwardCase{DType::bfloat16, 128, 256, "gelu_tanh", Accuracy::fast, {1, 8}, {{2, 20}}},
                    BackwardCase{DType::float16, 40, 136, "identity", Accuracy::fast, {0, 1}}));

TEST(HopperBackward, TheKernelsBesideItKeepEverythingInRegisters) {
  for (const auto& [head_dim, head_dim_v] :
       {std::pair{128, 128}, std::pair{40, 72}, std::pair{136, 200}, std::pair{256, 256}}) {
    for (const auto& [dtype, options] :
         {std::pair{DType::bfloat16, BackwardOptions{}}, std::pair{DType::float16, BackwardOptions{}},
          std::pair{DType::bfloat16, BackwardOptions{Form::shared}},
          std::pair{DType::bfloat16, BackwardOptions{Form::jagged, true}},
          std::pair{DType::bfloat16, BackwardOptions{.has_batch_map = true}}}) {
      const bool is_plain = options.key_form == Form::jagged && !options.deterministic && !options.has_batch_map;
      if (head_dim > 128 && !is_plain) continue;  // the portable kernels have these
      for (const Kernel& kernel :
           backward_kernels(dtype, head_dim, head_dim_v, Activation("silu"), Accuracy::fast, options)) {
        if (kernel.reads_function()) continue;
        for (const jit::Nvrtc& nvrtc : compilers()) {
          const jit::Compiled compiled = compile(nvrtc, kernel, Activation("silu"));
          EXPECT_TRUE(has_no_spill(compiled)) << kernel.description() << compiled.log;
          EXPECT_NE(compiled.log.find(" 0 bytes stack frame"), std::string::npos) << compiled.log;
        }
      }
    }
  }
}

TEST(HopperBackward, KernelsOfSomeGradientsLeaveProductsOutAndKeepEverythingInRegisters) {
  // Each set is a number: bit 0 stands for dQ, bit 1 for dK, and bit 2 for dV.
  constexpr int sets = 8;
  const auto of_set = [](int set) { return WantedGradients{(set & 1) != 0, (set & 2) != 0, (set & 4) != 0}; };
  const Activation activation("gelu_tanh");
  const auto kernel_of = [&](int64_t head_dim, WantedGradients wanted) {
    BackwardOptions options;
    options.wanted = wanted;
    std::optional<Kernel> last;  // the last pass, which has the most instructions
    for (const Kernel& kernel :
         backward_kernels(DType::bfloat16, head_dim, head_dim, activation, Accuracy::fast, options)) {
      if (kernel.reads_function()) last = kernel;
    }
    return last.value();
  };
  for (const int64_t head_dim : {64, 128, 192}) {
    for (const jit::Nvrtc& nvrtc : compilers()) {
      std::array<int, sets> products{};
      for (int set = 1; set < sets; ++set) {
        const jit::Compiled compiled = compile(nvrtc, kernel_of(head_dim, of_set(set)), activation);
        EXPECT_TRUE(has_no_spill(compiled)) << compiled.log;
        EXPECT_FALSE(has_warning(compiled)) << compiled.log;
        if (!disassembler().empty())
          products[static_cast<std::size_t>(set)] = count(disassemble(compiled.cubin), "HGMMA");
      }
      if (disassembler().empty()) continue;
      for (int set = 1; set < sets; ++set) {
        for (int part = 1; part < set; ++part) {
          if ((part & set) != part) continue;
          EXPECT_LT(products[static_cast<std::size_t>(part)], products[static_cast<std::size_t>(set)])
              << fmt::format("sets {} and {}, head_dim {}, NVRTC {}", part, set, head_dim, nvrtc.version());
        }
      }
    }
  }
}

TEST(HopperAddend, KernelsWhoseEpilogueAddsKeepEverythingInRegisters) {
  for (const auto& [dtype, head_dim] : {std::pair(DType::bfloat16, 128), std::pair(DType::float16, 96)}) {
    for (const char* function : {"gelu_tanh", "gelu"}) {
      for (const Direction direction : {Direction::forward, Direction::backward}) {
        Problem problem;
        problem.direction = direction;
        problem.dtype = dtype;
        problem.batch = 10;
        problem.heads_q = problem.heads_k = 4;
        problem.head_dim = problem.head_dim_v = head_dim;
        problem.rows_q = problem.rows_k = 20'000;
        problem.add_query = true;
        const Activation activation(function);
        const GpuPlan plan = TestCall{.problem = problem, .activation = activation, .params = scaled()}.plan();
        for (const Launch* launch : kernels_of(plan)) {
          const jit::Compiled compiled = compile(compilers().front(), launch->kernel(), activation);
          SCOPED_TRACE(launch->kernel().description());
          EXPECT_TRUE(has_no_spill(compiled)) << compiled.log;
          EXPECT_FALSE(has_warning(compiled)) << compiled.log;
        }
      }
    }
  }
}

TEST(HopperBackward, TheScheduleIsOneKernelWhateverTheFunction) {
  for (const Kernel& kernel : backward_kernels(DType::bfloat16, 128, 128, Activation("silu"))) {
    const auto source = [&](const char* function) { return kernel.source(Activation(function).function()); };
    EXPECT_EQ(source("silu") == source("relu"), !kernel.reads_function()) << kernel.description();
  }
}

}  // namespace
}  // namespace gdpa::gpu
