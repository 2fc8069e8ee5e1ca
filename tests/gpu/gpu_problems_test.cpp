// Random problems over every option, forward and backward, through the public C++ API with device pointers and a
// stream. The tests check that the GPU backend keeps its promise of accuracy, writes every element of every result, and
// writes nothing else. GDPA_GPU_PROBLEMS sets the number of problems of each configuration, GDPA_DRAWN_FUNCTIONS the
// number of configurations with a random function, GDPA_DRAWN_SCORES the number of configurations with a score that
// reads positions and tensors, and GDPA_FUNCTION_SEED selects these functions and scores. GDPA_PROBLEMS_WITH leaves out
// all problems whose description does not contain a text, such as kv_of. compute-sanitizer also runs this program.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device.h"
#include "fmt/format.h"
#include "gdpa/attention.h"
#include "gdpa/error.h"
#include "gdpa/prepared_mask.h"
#include "on_device.h"
#include "promise.h"
#include "random_expression.h"
#include "random_problem.h"

namespace gdpa::test {
namespace {

/// The options that determine the kernels. The test has few configurations, so compiling takes only a small part of its
/// time.
struct Configuration {
  DType dtype;
  int64_t head_dim;
  int64_t head_dim_v;
  std::string function;
  Accuracy accuracy = Accuracy::fast;
  Products products = Products::of_type;
  bool streams_queries = false;
  bool draws_scale = false;
  std::optional<DrawnFunction> drawn = {};
  std::optional<std::uint64_t> score = {};  ///< the seed of a score that reads positions and tensors
  std::optional<std::uint64_t> mask = {};   ///< the seed of a mask expression
  DrawnLayout layout = DrawnLayout::any;
  bool adds_query = false;
};

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* asked = std::getenv(variable);
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : otherwise;
}

/// GDPA_DRAWN_FUNCTIONS configurations with random expressions from the seed GDPA_FUNCTION_SEED.
std::vector<Configuration> drawn_configurations() {
  constexpr std::array<std::pair<int64_t, int64_t>, 6> head_dims = {
      {{8, 8}, {128, 128}, {64, 64}, {128, 40}, {32, 96}, {192, 192}}};
  const std::uint64_t seed = number_from("GDPA_FUNCTION_SEED", 1), count = number_from("GDPA_DRAWN_FUNCTIONS", 4);
  std::vector<Configuration> drawn;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto [head_dim, head_dim_v] = head_dims[(i + seed) % head_dims.size()];
    const DrawnFunction function = RandomExpression(seed * 1000 + i).function();
    drawn.push_back({.dtype = i % 4 == 3 ? DType::float16 : DType::bfloat16,
                     .head_dim = head_dim,
                     .head_dim_v = head_dim_v,
                     .function = function.text,
                     .draws_scale = true,
                     .drawn = function});
  }
  return drawn;
}

/// GDPA_DRAWN_SCORES configurations with scores that read positions and tensors of the call.
std::vector<Configuration> score_configurations() {
  constexpr std::array<std::pair<int64_t, int64_t>, 7> head_dims = {
      {{128, 128}, {64, 64}, {16, 16}, {128, 40}, {96, 96}, {192, 192}, {256, 128}}};
  constexpr std::array<DType, 4> dtypes = {DType::bfloat16, DType::bfloat16, DType::float16, DType::float32};
  const std::uint64_t seed = number_from("GDPA_FUNCTION_SEED", 1), count = number_from("GDPA_DRAWN_SCORES", 8);
  std::vector<Configuration> drawn;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto [head_dim, head_dim_v] = head_dims[(i + seed) % head_dims.size()];
    const DType dtype = dtypes[i % dtypes.size()];
    // In fp32 the promise is relative to PyTorch's own error, which a steep function makes large.
    const bool is_drawn = dtype != DType::float32 && i % 3 != 0;
    const DrawnFunction function = RandomExpression(seed * 1000 + i).function();
    drawn.push_back({.dtype = dtype,
                     .head_dim = head_dim,
                     .head_dim_v = head_dim_v,
                     .function = is_drawn ? function.text : smooth_functions()[i % 4].text,
                     .drawn = is_drawn ? std::optional(function) : std::nullopt,
                     .score = seed * 1000 + i});
  }
  return drawn;
}

/// A configuration for each condition of RandomMask, and for some combinations. Every third one has a score that reads
/// positions and tensors.
std::vector<Configuration> mask_configurations() {
  constexpr std::array<std::pair<int64_t, int64_t>, 5> head_dims = {
      {{128, 128}, {64, 64}, {128, 40}, {192, 192}, {32, 96}}};
  std::vector<Configuration> drawn;
  constexpr std::uint64_t combinations = 7;
  for (std::uint64_t i = 0; i < RandomMask::conditions + combinations; ++i) {
    const auto [head_dim, head_dim_v] = head_dims[i % head_dims.size()];
    const DType dtype = i % 6 == 4 ? DType::float32 : i % 6 == 2 ? DType::float16 : DType::bfloat16;
    drawn.push_back({.dtype = dtype,
                     .head_dim = head_dim,
                     .head_dim_v = head_dim_v,
                     .function = smooth_functions()[i % 4].text,
                     .score = i % 3 == 0 ? std::optional(i) : std::nullopt,
                     .mask = i});
  }
  return drawn;
}

/// Configurations for each layout. Some have a score that reads positions and tensors, or a mask expression.
std::vector<Configuration> layout_configurations() {
  constexpr std::array<std::pair<int64_t, int64_t>, 5> head_dims = {
      {{128, 128}, {64, 64}, {128, 40}, {32, 96}, {192, 192}}};
  constexpr std::array layouts = {DrawnLayout::batch_map, DrawnLayout::overlapping_keys, DrawnLayout::pages,
                                  DrawnLayout::output_offsets};
  constexpr std::uint64_t of_each = 5;
  std::vector<Configuration> drawn;
  for (std::uint64_t i = 0; i < layouts.size() * of_each; ++i) {
    const std::uint64_t number = i / layouts.size();
    const auto [head_dim, head_dim_v] = head_dims[number];
    const DrawnLayout layout = layouts[i % layouts.size()];
    const bool may_have_score = layout != DrawnLayout::pages;  // a tensor with an axis of keys has no rows of pages
    drawn.push_back({.dtype = number == 3  ? DType::float32
                              : i % 2 == 1 ? DType::float16
                                           : DType::bfloat16,
                     .head_dim = head_dim,
                     .head_dim_v = head_dim_v,
                     .function = smooth_functions()[i % 4].text,
                     .score = number == 1 && may_have_score ? std::optional(i) : std::nullopt,
                     .mask = number == 2 ? std::optional(i) : std::nullopt,
                     .layout = layout});
  }
  return drawn;
}

std::string name_of(const Configuration& c) {
  std::string text =
      fmt::format("{}_{}_{}_{}_{}{}", c.products == Products::tf32 ? "tf32" : name(c.dtype), c.head_dim, c.head_dim_v,
                  c.function, c.accuracy == Accuracy::fast ? "fast" : "exact", c.streams_queries ? "_streams" : "");
  if (c.adds_query) text += "_with_query";
  for (char& letter : text) {
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  }
  return text;
}

const std::vector<Configuration>& configurations() {
  constexpr DType bf16 = DType::bfloat16, fp16 = DType::float16, fp32 = DType::float32;
  constexpr Accuracy fast = Accuracy::fast, exact = Accuracy::exact;
  static const std::vector<Configuration> all = [=] {
    std::vector<Configuration> known = {
        {bf16, 8, 8, "identity"},
        {bf16, 16, 16, "gelu"},
        {bf16, 40, 72, "silu"},
        {bf16, 64, 64, "gelu"},
        {bf16, 64, 128, "sigmoid"},
        {bf16, 128, 128, "gelu"},
        {bf16, 128, 128, "silu", exact},
        {bf16, 128, 128, "1"},
        {bf16, 128, 40, "exp(-s * s) + 0.25 * s"},
        {bf16, 192, 128, "silu"},
        {bf16, 192, 192, "gelu"},
        {bf16, 136, 200, "silu"},
        {bf16, 256, 256, "gelu", exact},
        {fp16, 16, 16, "silu"},
        {fp16, 64, 64, "gelu", exact},
        {fp16, 96, 64, "cos(s)"},
        {fp16, 128, 128, "relu2"},
        {fp16, 128, 128, "gelu"},
        {fp16, 160, 160, "gelu"},
        {fp16, 128, 256, "relu2"},
        {fp16, 192, 256, "sigmoid"},
        {fp32, 16, 16, "gelu"},
        {fp32, 40, 104, "silu"},
        {fp32, 64, 64, "gelu"},
        {fp32, 128, 128, "sigmoid"},
        {fp32, 192, 128, "silu"},
        {fp32, 256, 256, "cos(s)"},
        {fp32, 64, 64, "gelu", fast, Products::tf32},
        {fp32, 40, 16, "silu", fast, Products::tf32},
        {fp32, 128, 128, "relu2", fast, Products::tf32},
        {fp32, 256, 192, "identity", fast, Products::tf32},
        {bf16, 64, 64, "gelu", fast, Products::of_type, true},
        {fp16, 48, 32, "silu", fast, Products::of_type, true},
        // This function is steep for its scores, so a second rounding of Q would exceed the promise.
        {bf16, 128, 128, "s * exp(-s * s)", fast, Products::of_type, false, true},
    };
    const Configuration adds_query{
        .dtype = bf16, .head_dim = 128, .head_dim_v = 128, .function = "silu", .adds_query = true};
    for (const auto& [dtype, head_dim] : {std::pair(bf16, 128), std::pair(bf16, 64), std::pair(fp16, 32),
                                          std::pair(bf16, 192), std::pair(fp16, 256), std::pair(fp32, 64)}) {
      Configuration one = adds_query;
      one.dtype = dtype;
      one.head_dim = one.head_dim_v = head_dim;
      one.streams_queries = head_dim == 64 && dtype == bf16;
      known.push_back(one);
    }
    const std::vector<Configuration> drawn = drawn_configurations();
    known.insert(known.end(), drawn.begin(), drawn.end());
    for (const auto& more : {score_configurations(), mask_configurations(), layout_configurations()}) {
      known.insert(known.end(), more.begin(), more.end());
    }
    return known;
  }();
  return all;
}

/// The index of a configuration. It prints as words, in which scripts/gpu-record finds the subjects of the tests.
struct Index {
  std::size_t value;
  operator std::size_t() const { return value; }  // NOLINT(google-explicit-constructor)
};

std::vector<Index> indices() {
  std::vector<Index> all;
  for (std::size_t i = 0; i < configurations().size(); ++i) all.push_back({i});
  return all;
}

std::string_view name(DrawnLayout layout) {
  switch (layout) {
    case DrawnLayout::any:
      return "any layout";
    case DrawnLayout::batch_map:
      return "batch map";
    case DrawnLayout::overlapping_keys:
      return "overlapping keys";
    case DrawnLayout::pages:
      return "pages";
    case DrawnLayout::output_offsets:
      return "output offsets";
  }
  return "";
}

void PrintTo(const Index& index, std::ostream* stream) {
  const Configuration& c = configurations()[index];
  *stream << fmt::format("{} {} {} with {}{}{}", c.products == Products::tf32 ? "tf32" : name(c.dtype), c.head_dim,
                         c.head_dim_v, name(c.layout), c.score ? ", tensors" : "", c.mask ? ", mask" : "");
}

int problem_count() { return static_cast<int>(number_from("GDPA_GPU_PROBLEMS", 20)); }

/// Counts for the record: the number of problems with each option, and of launches of each kind of kernel.
using Counts = std::map<std::string, int>;

void count_kernels(const Attention& attention, const WantedGradients& wanted, Counts& counts) {
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    if (direction == Direction::backward && !wanted.any()) continue;
    for (const GpuKernel& kernel : explain(attention, direction, "", wanted).kernels) {
      ++counts[property_of(kernel.name)];
      counts["pages loaded by TMA"] += kernel.name.find(" paged in boxes of ") != std::string::npos ? 1 : 0;
    }
  }
}

void count_options(const Attention& attention, const Reference& reference, bool has_guards, Counts& counts) {
  const auto count = [&](const char* option, bool is_drawn) { counts[option] += is_drawn ? 1 : 0; };
  const auto count_side = [&](const std::string& side, const TensorView& operand,
                              const std::optional<TensorView>& cu_seqlens,
                              const std::optional<TensorView>& seq_offsets) {
    count((side + " jagged").c_str(), cu_seqlens.has_value());
    count((side + " dense").c_str(), operand.rank == 4);
    count((side + " with gaps").c_str(), seq_offsets.has_value());
    count((side + " shared").c_str(), !cu_seqlens && !seq_offsets && operand.rank == 3 && reference.entries.size() > 1);
    count("offsets of 64 bits", cu_seqlens && cu_seqlens->dtype == DType::int64);
  };
  count_side("query", attention.query, attention.cu_seqlens_q, attention.seq_offsets_q);
  count_side("key", attention.key, attention.cu_seqlens_k, attention.seq_offsets_k);
  count("batch map", attention.kv_of.has_value());
  count("pages", attention.block_table.has_value());
  count("output offsets", attention.output_offsets.has_value());
  count("output not zeroed", !attention.zeroes_output);
  count("problems", true);
  count("deterministic", attention.deterministic);
  count("exact", attention.accuracy == Accuracy::exact);
  count("tf32", attention.allow_tf32);
  count("grouped heads", reference.query.heads > reference.key.heads);
  count("window", !attention.mask.keeps_all());
  count("diagonal upper left", !attention.mask.keeps_all() && attention.mask.diagonal == Diagonal::upper_left);
  count("out_scale 1/len_q", attention.out_scale.kind == OutScale::Kind::reciprocal_length_q);
  count("out_scale 1/len_k", attention.out_scale.kind == OutScale::Kind::reciprocal_length_k);
  count("out_scale of each entry", attention.out_scale.kind == OutScale::Kind::per_batch);
  count("out_scale of each query", attention.out_scale.kind == OutScale::Kind::per_row);
  count("scale given", attention.scale.has_value());
  count("add_query", attention.add_query);
  count("workspace given", attention.workspace.data != nullptr);
  count("mask expression", attention.mask_expression.has_value());
  count("prepared mask", attention.prepared_mask.has_value());
  count("guards", has_guards);
  count("an entry without rows", std::any_of(reference.entries.begin(), reference.entries.end(),
                                             [](const Entry& e) { return e.length_q == 0 || e.length_k == 0; }));
}

class GpuProblems : public testing::TestWithParam<Index> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }

  /// The prepared mask of the problem, for the gradients of all tensors.
  static PreparedMask prepared(const Attention& attention, RandomProblem& problem, OnDevice& device) {
    PrepareOptions options{.backward = !problem.is_forward_only()};
    for (std::size_t i = 0; i < problem.tensors().size(); ++i) {
      if (problem.tensors()[i].is_floating) options.wanted.parameters |= 1U << i;
    }
    const Workspace memory = device.workspace(prepared_mask_bytes(attention, options));
    return prepare_mask(attention, memory.data, memory.bytes, options);
  }

  /// Eight consecutive problems have all combinations of deterministic mode, rows on multiples of 16 bytes, and guards.
  /// Under compute-sanitizer a configuration has four problems: two with each kind of rows, one of them with guards and
  /// one without. The next configuration has guards where this configuration has none.
  static void check(std::uint64_t seed, Counts& counts) {
    constexpr std::uint64_t kinds = 8;
    const Configuration& fixed = configurations()[GetParam()];
    const Gpu& gpu = Gpu::get();
    RandomProblem problem(seed, {.dtype = fixed.dtype,
                                 .function = fixed.function,
                                 .drawn = fixed.drawn,
                                 .head_dim = fixed.head_dim,
                                 .head_dim_v = fixed.head_dim_v,
                                 .gap_unit = seed / 2 % 2 == 0 ? 8 : 1,
                                 .streams_queries = fixed.streams_queries,
                                 .on_cpu = false,
                                 .score = fixed.score,
                                 .is_forward_only = fixed.layout == DrawnLayout::pages || (seed + GetParam()) % 5 == 2,
                                 .mask = fixed.mask,
                                 .layout = fixed.layout,
                                 .draws_scale = fixed.draws_scale,
                                 .adds_query = fixed.adds_query,
                                 .kind = GetParam() * kinds + seed % kinds});
    const char* const with = std::getenv("GDPA_PROBLEMS_WITH");
    if (with != nullptr && problem.describe().find(with) == std::string::npos) return;
    const std::size_t guard = (GetParam() + seed + seed / 2 + seed / 4) % 2 == 0 ? 4096 : 0;
    SCOPED_TRACE(fmt::format("f {}, head_dim {} / {}, seed {}: {}", fixed.function, fixed.head_dim, fixed.head_dim_v,
                             seed, problem.describe()));
    Strided grad_output = problem.grad_output();
    Results results(problem);
    OnDevice device(gpu, guard);
    Attention attention = problem.attention([&](const Strided& operand) { return device.input(operand); });
    attention.accuracy = fixed.accuracy;
    attention.deterministic = seed % 2 == 0;
    // The promise for fast functions is for many scores. Only calls that are not deterministic count their scores.
    constexpr int64_t few_scores = 4096;
    if (attention.deterministic && problem.scores() <= few_scores) attention.accuracy = Accuracy::exact;
    attention.allow_tf32 = fixed.products == Products::tf32;
    attention.stream = gpu.stream();
    // Every second problem with a mask expression prepares it, for the tiles of a dO that TMA can address.
    const std::array<int64_t, TensorView::max_rank> strides = grad_output.view().strides;
    const bool runs_backwards = std::any_of(strides.begin(), strides.end(), [](int64_t stride) { return stride < 0; });
    if (fixed.mask && seed / 2 % 2 == 0 && !runs_backwards) {
      attention.prepared_mask = prepared(attention, problem, device);
    }
    forward(attention, device.output(results.output));
    count_options(attention, problem.reference(), guard > 0, counts);
    count_kernels(attention, problem.wanted(), counts);
    if (problem.is_forward_only()) {
      device.fetch({&results.output});
      expect_promise(problem, grad_output, results, fixed.products);
      return;
    }
    const TensorView grad_output_view = device.input(grad_output);
    const auto gradient = [&](bool is_wanted, Strided& host) {
      return is_wanted ? device.output(host) : MutableTensorView{};
    };
    const WantedGradients& wanted = problem.wanted();
    const MutableTensorView grad_query = gradient(wanted.query, results.grad_query),
                            grad_key = gradient(wanted.key, results.grad_key),
                            grad_value = gradient(wanted.value, results.grad_value);
    std::vector<ParameterGradient> grad_parameters;
    std::vector<Strided*> fetched = {&results.output, &results.grad_query, &results.grad_key, &results.grad_value};
    for (std::size_t i = 0; i < problem.tensors().size(); ++i) {
      const DrawnTensor& tensor = problem.tensors()[i];
      if (!tensor.is_floating) continue;
      grad_parameters.push_back({tensor.name, device.output(results.grad_tensors[i])});
      fetched.push_back(&results.grad_tensors[i]);
    }
    if (seed % 3 == 0) {
      attention.workspace = device.workspace(
          workspace_bytes(attention, grad_output_view, grad_query, grad_key, grad_value, grad_parameters));
    }
    backward(attention, grad_output_view, grad_query, grad_key, grad_value, grad_parameters);
    device.fetch(fetched);
    expect_promise(problem, grad_output, results, fixed.products);
    counts["some gradient not wanted"] += wanted.all() ? 0 : 1;
  }
};

TEST_P(GpuProblems, AgreeWithTheDefinition) {
  Counts counts;
  std::uint64_t seed = GetParam() * 1'000'000;
  for (int i = 0; i < problem_count() && !HasFailure(); ++i) check(seed++, counts);
  for (const auto& [option, number] : counts) RecordProperty(option, number);
}

/// The name of a random function, score, mask or layout is a number that is the same in every run. The trace of a
/// failure has its text.
std::string test_name(const testing::TestParamInfo<Index>& tested) {
  const std::size_t layouts = configurations().size() - layout_configurations().size();
  const std::size_t masks = layouts - mask_configurations().size();
  const std::size_t scores = masks - score_configurations().size();
  const std::size_t drawn = scores - drawn_configurations().size();
  if (tested.param >= layouts) return fmt::format("layout_{}", tested.param - layouts);
  if (tested.param >= masks) return fmt::format("mask_{}", tested.param - masks);
  if (tested.param >= scores) return fmt::format("score_{}", tested.param - scores);
  return tested.param < drawn ? name_of(configurations()[tested.param]) : fmt::format("drawn_{}", tested.param - drawn);
}

INSTANTIATE_TEST_SUITE_P(Drawn, GpuProblems, testing::ValuesIn(indices()), test_name);

/// The output for keys in three pages of 32 rows, with this table of two pages for each of two entries, and with these
/// lengths.
std::vector<std::byte> output_of_pages(const std::vector<std::int32_t>& table,
                                       const std::vector<std::int32_t>& lengths) {
  const Gpu& gpu = Gpu::get();
  OnDevice device(gpu, 4096);
  std::mt19937_64 random(1);
  Strided query = Strided::contiguous(DType::bfloat16, {2, 70, 2, 64}), output = query,
          pages = Strided::contiguous(DType::bfloat16, {3, 32, 1, 64});
  query.fill_normal(random);
  pages.fill_normal(random);
  const auto integers = [&](const std::vector<std::int32_t>& numbers, const std::vector<int64_t>& sizes) {
    Strided tensor = Strided::contiguous(DType::int32, sizes);
    std::memcpy(tensor.bytes().data(), numbers.data(), tensor.bytes().size());
    return tensor;
  };
  const Strided table_tensor = integers(table, {2, 2}), lengths_tensor = integers(lengths, {2});
  const Attention attention{.query = device.input(query),
                            .key = device.input(pages),
                            .value = device.input(pages),
                            .block_table = device.input(table_tensor),
                            .seqused_k = device.input(lengths_tensor),
                            .stream = gpu.stream()};
  forward(attention, device.output(output));
  device.fetch({&output});
  return output.bytes();
}

TEST(GpuPages, PageNumbersAndLengthsThatAreWrongAreClamped) {
  if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  EXPECT_EQ(output_of_pages({-1, 7, 2, 1}, {40, 65}), output_of_pages({0, 2, 2, 1}, {40, 64}));
  EXPECT_EQ(output_of_pages({1, 2, 0, 1}, {-3, 33}), output_of_pages({1, 2, 0, 1}, {0, 33}));
}

/// The fp32 accumulators of dQ need more memory than any GPU has.
TEST(GpuMemory, AFailingAllocationIsAnErrorInWords) {
  if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  constexpr int64_t rows = int64_t{1} << 30, apart = int64_t{1} << 44;
  const Gpu& gpu = Gpu::get();
  const GuardedMemory memory(gpu, std::vector<std::byte>(4096), 0);
  const Device device{DeviceKind::cuda, 0};
  // The call fails before it reads or writes anything, so the operands need addresses but no memory.
  const auto input = [&](int64_t count) {
    return TensorView::contiguous(memory.data(), DType::bfloat16, {count, 8, 256}, device);
  };
  const auto gradient = [&](int64_t count, int64_t place) {
    return MutableTensorView::contiguous(memory.data() + place * apart, DType::bfloat16, {count, 8, 256}, device);
  };
  const Attention attention{.query = input(rows), .key = input(8), .value = input(8), .stream = gpu.stream()};
  try {
    backward(attention, input(rows), gradient(rows, 1), gradient(8, 2), gradient(8, 3));
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::out_of_memory);
    EXPECT_NE(std::string(error.what()).find("workspace"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("MEMORY"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace gdpa::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
