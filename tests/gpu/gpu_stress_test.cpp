// Many launches of the Hopper kernels on small problems, with a random delay at every wait, arrival and copy
// (GDPA_RANDOM_DELAYS). If a kernel relies on an order of events that it does not enforce, some launch gives another
// result. The results of the first call are compared with the definition in fp64. The results of each later call are
// compared with the first results on the GPU, bit by bit. The order of additions to dQ varies in the default mode, so
// this dQ is compared with the definition each time.
//
// GDPA_STRESS_LAUNCHES is the total number of calls of forward and backward over all problems, by default 100,000.
// GDPA_STRESS_SECONDS, if set, limits the time in seconds instead. GDPA_STRESS_CASES, if set, selects the problems with
// names that begin with this text.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "device.h"
#include "gdpa/gdpa.h"
#include "gpu/target.h"
#include "jit/nvrtc.h"
#include "reference.h"
#include "strided.h"

namespace gdpa::test {
namespace {

/// A small problem for one synchronisation scheme. A call takes some tens of microseconds. Operands are bfloat16.
struct StressCase {
  const char* name;
  int64_t head_dim;
  int64_t head_dim_v;
  int64_t heads;
  std::vector<int64_t> lengths_q;
  std::vector<int64_t> lengths_k;
  Mask mask = {};
  const char* function = "relu";
  bool is_dense = false;  ///< equal lengths without cumulative lengths
  bool shares_keys = false;
  bool shares_queries = false;
  bool has_deterministic = true;  ///< whether a Hopper kernel computes the deterministic gradients
  bool adds_query = false;
};

/// So many query tiles that CTAs of forward take them from a counter: 8 for each multiprocessor.
StressCase tiles_from_a_counter() {
  std::vector<int64_t> lengths;
  for (int i = 0; i < gpu::target_of(0).gpu.multiprocessors; ++i) lengths.insert(lengths.end(), {5, 1});
  return {"tiles_from_a_counter", 64, 64, 4, lengths, {900}, {}, "gelu", false, true};
}

/// Several tiles of 128 keys and of 64 queries for each head, full and partial tiles, and sequences without rows.
const std::vector<StressCase>& cases() {
  const std::vector<int64_t> queries{330, 64, 0, 190}, keys{600, 300, 200, 0};
  static const std::vector<StressCase> all = {
      {"sums", 64, 64, 2, queries, keys},
      {"sums_of_128_columns", 128, 128, 2, {200, 65, 130}, {500, 129, 257}},
      {"causal", 64, 64, 2, {500, 300, 70}, {500, 300, 70}, Mask::causal()},
      {"window", 64, 64, 2, {600, 250}, {600, 250}, Mask::window(140, 20)},
      {"tiles_of_128_queries", 64, 64, 1, {700, 640, 520}, {300, 520, 260}},
      {"two_passes", 64, 64, 2, queries, keys, {}, "gelu"},
      {"one_tile_of_keys", 64, 64, 2, {330, 100, 64, 20}, {128, 100, 30, 64}},
      {"whole", 64, 64, 1, std::vector<int64_t>(140, 100), std::vector<int64_t>(140, 200), {}, "relu", true},
      {"direct", 128, 128, 2, {400, 300, 130, 64}, {512, 300, 256, 129}},
      {"direct_causal", 128, 128, 1, {500, 300, 200}, {500, 300, 200}, Mask::causal()},
      {"few_queries", 128, 128, 2, {1, 64, 30, 17, 60}, {300, 260, 40, 129, 500}},
      {"shared_keys", 64, 64, 2, {400, 100, 0, 333}, {200}, {}, "relu", false, true},
      {"shared_queries", 64, 64, 2, {100}, {300, 0, 77, 500}, {}, "relu", false, false, true, false},
      {"wide", 192, 192, 1, {200, 70}, {300, 100}, {}, "relu", false, false, false, false},
      {"sums_with_query", 64, 64, 2, queries, keys, {}, "relu", false, false, false, true, true},
      {"one_tile_with_query", 128, 128, 2, {330, 64, 20}, {128, 30, 64}, {}, "relu", false, false, false, true, true},
      {"wide_with_query", 256, 256, 1, {200, 70}, {100, 30}, {}, "relu", false, false, false, false, true},
      tiles_from_a_counter(),
  };
  return all;
}

std::vector<std::byte> bytes_of(const void* data, std::size_t bytes) {
  const auto* const begin = static_cast<const std::byte*>(data);
  return {begin, begin + bytes};
}

/// Kernels that compare results on the GPU, so that only the number of differences is copied to the host.
class Comparison {
 public:
  explicit Comparison(const Gpu& gpu) : gpu_(gpu) {
    int major = 0, minor = 0;
    const gpu::Driver& driver = gpu::Driver::get();
    gpu::check(driver.device_attribute(&major, gpu::DeviceAttribute::compute_capability_major, 0), "asking");
    gpu::check(driver.device_attribute(&minor, gpu::DeviceAttribute::compute_capability_minor, 0), "asking");
    const std::string architecture = fmt::format("sm_{}{}{}", major, minor, major >= 9 ? "a" : "");
    const jit::Compiled compiled = jit::Nvrtc::open().compile({source, "the comparison of results"}, architecture);
    gpu::Module module = nullptr;
    gpu::check(driver.module_load(&module, compiled.cubin.data()), "loading the comparison");
    gpu::check(driver.module_kernel(&bits_, module, "count_different_words"), "finding a kernel");
    gpu::check(driver.module_kernel(&errors_, module, "count_errors"), "finding a kernel");
  }

  /// Adds the number of 32-bit words that differ to `count`.
  void bits(const std::byte* result, const std::byte* first, std::size_t bytes, std::byte* count) const {
    auto words = static_cast<unsigned>(bytes / sizeof(unsigned));
    void* arguments[] = {&result, &first, &words, &count};
    launch(bits_, words, arguments);
  }

  /// Adds the number of bfloat16 elements that differ from `expected` by more than `tolerance`, in fp32.
  void errors(const std::byte* result, const std::byte* expected, std::size_t elements, float tolerance,
              std::byte* count) const {
    auto number = static_cast<unsigned>(elements);
    void* arguments[] = {&result, &expected, &number, &tolerance, &count};
    launch(errors_, number, arguments);
  }

 private:
  static constexpr const char* source = R"(
extern "C" __global__ void count_different_words(const unsigned* result, const unsigned* first, unsigned words,
                                                 unsigned* count) {
  unsigned differences = 0;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) {
    if (result[i] != first[i]) ++differences;
  }
  if (differences != 0) atomicAdd(count, differences);
}

/// An element that is NaN is also an error.
extern "C" __global__ void count_errors(const unsigned short* result, const float* expected, unsigned elements,
                                        float tolerance, unsigned* count) {
  unsigned errors = 0;
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += gridDim.x * blockDim.x) {
    const float error = fabsf(__uint_as_float(unsigned{result[i]} << 16) - expected[i]);
    if (!(error <= tolerance + fabsf(expected[i]) * 0x1p-7f)) ++errors;
  }
  if (errors != 0) atomicAdd(count, errors);
}
)";

  void launch(gpu::KernelHandle kernel, unsigned elements, void** arguments) const {
    constexpr unsigned threads = 256, most_ctas = 64;
    const unsigned ctas = std::clamp((elements + threads - 1) / threads, 1u, most_ctas);
    gpu::check(gpu::Driver::get().launch(kernel, ctas, 1, 1, threads, 1, 1, 0, gpu_.stream(), arguments, nullptr),
               "comparing results");
  }

  const Gpu& gpu_;
  gpu::KernelHandle bits_ = nullptr;
  gpu::KernelHandle errors_ = nullptr;
};

/// One result of a call on the GPU, with the result of the first call and the number of differences.
struct Result {
  enum class Compared { bits, with_fp64 };

  Result(const Gpu& gpu, const char* name_, std::vector<int64_t> sizes_, Compared compared_)
      : name(name_),
        sizes(std::move(sizes_)),
        compared(compared_),
        now(gpu, poison(), 0),
        first(gpu, poison(), 0),
        expected(gpu, std::vector<std::byte>(elements() * sizeof(float)), 0),
        view(Strided::contiguous(DType::bfloat16, sizes).mutable_view()) {
    view.data = now.data();
    view.device = {DeviceKind::cuda, 0};
  }

  std::size_t elements() const {
    return static_cast<std::size_t>(
        std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, [](int64_t a, int64_t b) { return a * b; }));
  }
  /// Bytes of NaN, rounded up to a whole number of 32-bit words.
  std::vector<std::byte> poison() const {
    return std::vector<std::byte>((elements() + elements() % 2) * 2, std::byte{0xff});
  }

  std::string name;
  std::vector<int64_t> sizes;
  Compared compared;
  float tolerance = 0;  ///< of each element of dQ, in addition to the tolerance of its rounding
  GuardedMemory now, first, expected;
  MutableTensorView view;  ///< of `now`
};

/// The operands of a case on the GPU, its calls, and the comparison of their results.
class Stress {
 public:
  Stress(const StressCase& test, const Comparison& comparison)
      : test_(test), gpu_(Gpu::get()), comparison_(comparison), counts_(gpu_, std::vector<std::byte>(1024), 0) {
    std::mt19937_64 random(11);
    const auto drawn = [&](int64_t rows, int64_t width) {
      Strided operand = Strided::contiguous(DType::bfloat16, {rows, test.heads, width});
      operand.fill_normal(random);
      return operand;
    };
    const int64_t rows_q = sum(test.lengths_q), rows_k = sum(test.lengths_k);
    batch_ = static_cast<int64_t>(std::max(test.lengths_q.size(), test.lengths_k.size()));
    output_rows_ = test.shares_queries ? rows_q * batch_ : rows_q;
    Strided query = drawn(rows_q, test.head_dim), key = drawn(rows_k, test.head_dim),
            value = drawn(rows_k, test.head_dim_v), grad_output = drawn(output_rows_, test.head_dim_v);
    for (Strided* operand : {&query, &key, &value, &grad_output}) operands_.push_back(on_gpu(operand->bytes()));
    for (const std::vector<int64_t>* lengths : {&test.lengths_q, &test.lengths_k}) {
      std::vector<int64_t> offsets(lengths->size() + 1);
      std::partial_sum(lengths->begin(), lengths->end(), offsets.begin() + 1);
      offsets_.push_back(on_gpu(bytes_of(offsets.data(), offsets.size() * sizeof(int64_t))));
    }
    attention_ = {.query = input(0, rows_q, test.head_dim, test.lengths_q),
                  .key = input(1, rows_k, test.head_dim, test.lengths_k),
                  .value = input(2, rows_k, test.head_dim_v, test.lengths_k),
                  .activation = Activation(test.function),
                  .mask = test.mask,
                  .stream = gpu_.stream()};
    attention_.add_query = test.adds_query;
    if (!test.is_dense && !test.shares_queries) attention_.cu_seqlens_q = offsets_view(0, test.lengths_q);
    if (!test.is_dense && !test.shares_keys) attention_.cu_seqlens_k = offsets_view(1, test.lengths_k);
    grad_output_ =
        input(3, output_rows_, test.head_dim_v, test.shares_queries ? std::vector<int64_t>{} : test.lengths_q);

    using Compared = Result::Compared;
    const std::vector<int64_t> query_sizes = sizes_of(attention_.query), key_sizes = sizes_of(attention_.key),
                               value_sizes = sizes_of(attention_.value), output_sizes = sizes_of(grad_output_);
    add_call([](Attention& call, const std::vector<MutableTensorView>& results) { forward(call, results[0]); },
             {{"O", output_sizes, Compared::bits}});
    const auto run_backward = [this](Attention& call, const std::vector<MutableTensorView>& results) {
      backward(call, grad_output_, results[0], results[1], results[2]);
    };
    add_call(run_backward, {{"dQ", query_sizes, Compared::with_fp64},
                            {"dK", key_sizes, Compared::bits},
                            {"dV", value_sizes, Compared::bits}});
    if (test.has_deterministic) {
      add_call(run_backward, {{"dQ in one order", query_sizes, Compared::bits},
                              {"dK with dQ in one order", key_sizes, Compared::bits},
                              {"dV with dQ in one order", value_sizes, Compared::bits}});
      calls_.back().deterministic = true;
    }
    expect_definition(query, key, value, grad_output);
  }

  /// The number of calls of forward and backward in a round.
  int calls() const { return static_cast<int>(calls_.size()); }

  /// Launches `rounds` rounds of all calls on the stream, compares the results of each call, and waits. Returns a text
  /// with the number of different elements of each result that differs, or an empty text.
  std::string run(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      for (Call& call : calls_) launch(call, true);
    }
    return differences();
  }

  const char* name() const { return test_.name; }
  std::string forward_reason() const { return explain(attention_, Direction::forward).reason; }

  void count_kernels() const {
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      for (const GpuKernel& kernel : explain(attention_, direction).kernels) {
        testing::Test::RecordProperty(property_of(kernel.name), 1);
      }
    }
  }

 private:
  using Run = std::function<void(Attention&, const std::vector<MutableTensorView>&)>;
  struct ResultShape {
    const char* name;
    std::vector<int64_t> sizes;
    Result::Compared compared;
  };
  struct Call {
    Run run;
    bool deterministic = false;
    std::vector<std::unique_ptr<Result>> results;
  };

  static int64_t sum(const std::vector<int64_t>& lengths) {
    return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  }
  std::unique_ptr<GuardedMemory> on_gpu(const std::vector<std::byte>& bytes) const {
    return std::make_unique<GuardedMemory>(gpu_, bytes, 0);
  }
  static std::vector<int64_t> sizes_of(const TensorView& view) {
    return {view.sizes.begin(), view.sizes.begin() + view.rank};
  }
  TensorView input(std::size_t operand, int64_t rows, int64_t width, const std::vector<int64_t>& lengths) const {
    const Device device{DeviceKind::cuda, 0};
    const void* const data = operands_[operand]->data();
    if (!test_.is_dense) return TensorView::contiguous(data, DType::bfloat16, {rows, test_.heads, width}, device);
    return TensorView::contiguous(data, DType::bfloat16, {batch_, lengths.front(), test_.heads, width}, device);
  }
  TensorView offsets_view(std::size_t side, const std::vector<int64_t>& lengths) const {
    return TensorView::contiguous(offsets_[side]->data(), DType::int64, {static_cast<int64_t>(lengths.size()) + 1},
                                  {DeviceKind::cuda, 0});
  }

  void add_call(Run run, const std::vector<ResultShape>& results) {
    Call call{std::move(run), false, {}};
    for (const ResultShape& result : results) {
      call.results.push_back(std::make_unique<Result>(gpu_, result.name, result.sizes, result.compared));
    }
    calls_.push_back(std::move(call));
  }

  /// Results are NaN before the call, so an element that the call does not write is an error.
  void launch(Call& call, bool compares) {
    std::vector<MutableTensorView> views;
    for (const auto& result : call.results) {
      views.push_back(result->view);
      gpu::check(gpu::Driver::get().fill_async(reinterpret_cast<gpu::DevicePointer>(result->now.data()), 0xff,
                                               result->poison().size(), gpu_.stream()),
                 "filling a result with NaN");
    }
    attention_.deterministic = call.deterministic;
    call.run(attention_, views);
    if (!compares) return;
    for (const auto& result : call.results) {
      std::byte* const count = counts_.data() + index_of(*result) * sizeof(unsigned);
      if (result->compared == Result::Compared::bits) {
        comparison_.bits(result->now.data(), result->first.data(), result->poison().size(), count);
      } else {
        comparison_.errors(result->now.data(), result->expected.data(), result->elements(), result->tolerance, count);
      }
    }
  }

  std::size_t index_of(const Result& wanted) const {
    std::size_t index = 0;
    for (const Call& call : calls_) {
      for (const auto& result : call.results) {
        if (result.get() == &wanted) return index;
        ++index;
      }
    }
    return index;
  }

  std::string differences() {
    counts_.fetch();
    const std::vector<std::byte> bytes = counts_.content();
    std::string text;
    for (const Call& call : calls_) {
      for (const auto& result : call.results) {
        unsigned count = 0;
        std::memcpy(&count, bytes.data() + index_of(*result) * sizeof count, sizeof count);
        if (count == 0) continue;
        text += fmt::format("{}{}: {} {}", text.empty() ? "" : "; ", result->name, count,
                            result->compared == Result::Compared::bits ? "words differ from the first call's"
                                                                       : "elements differ from the definition");
      }
    }
    return text;
  }

  /// Runs the first call of each kind, stores its results, and compares them with the definition.
  void expect_definition(Strided& query, Strided& key, Strided& value, Strided& grad_output) {
    const auto dense = [&](Strided& operand) {
      const auto& sizes = operand.sizes();
      return Dense{sizes[0], sizes[1], sizes[2], operand.values()};
    };
    Reference reference;
    reference.query = dense(query);
    reference.key = dense(key);
    reference.value = dense(value);
    reference.output_rows = output_rows_;
    const Activation activation(test_.function);
    const bool is_relu = std::string(test_.function) == "relu";
    reference.function = [is_relu](double x) {
      return is_relu ? std::max(x, 0.0) : 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    };
    reference.derivative = [is_relu](double x) {
      if (is_relu) return x > 0 ? 1.0 : 0.0;
      return 0.5 * (1 + std::erf(x / std::sqrt(2.0))) + x * std::exp(-x * x / 2) / std::sqrt(2 * std::acos(-1.0));
    };
    reference.scale = 1 / std::sqrt(static_cast<double>(test_.head_dim));
    reference.add_query = test_.adds_query;
    reference.left = test_.mask.left;
    reference.right = test_.mask.right;
    int64_t begin_q = 0, begin_k = 0;
    for (int64_t b = 0; b < batch_; ++b) {
      const int64_t length_q = test_.lengths_q[test_.shares_queries ? 0 : static_cast<std::size_t>(b)];
      const int64_t length_k = test_.lengths_k[test_.shares_keys ? 0 : static_cast<std::size_t>(b)];
      const int64_t query_begin = test_.shares_queries ? 0 : begin_q, key_begin = test_.shares_keys ? 0 : begin_k;
      reference.entries.push_back({query_begin, begin_q, key_begin, length_q, length_k});
      begin_q += length_q;
      begin_k += length_k;
    }
    const Dense output = reference_output(reference);
    const ReferenceGradients gradients = reference_gradients(reference, dense(grad_output));
    for (Call& call : calls_) {
      launch(call, false);
      const std::vector<const Dense*> expected =
          call.results.size() == 1 ? std::vector<const Dense*>{&output}
                                   : std::vector<const Dense*>{&gradients.query, &gradients.key, &gradients.value};
      for (std::size_t i = 0; i < expected.size(); ++i) expect_right(*call.results[i], expected[i]->values);
    }
  }

  void expect_right(Result& result, const std::vector<double>& expected) {
    result.now.fetch();
    const std::vector<std::byte> content = result.now.content();
    double errors = 0, squares = 0;
    std::vector<float> rounded(expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double error = to_double(DType::bfloat16, content.data() + i * 2) - expected[i];
      errors += error * error;
      squares += expected[i] * expected[i];
      rounded[i] = static_cast<float>(expected[i]);
    }
    constexpr double promise = 6e-3;  // of docs/accuracy.md, in bfloat16
    EXPECT_LE(std::sqrt(errors), promise * std::sqrt(squares)) << test_.name << ": " << result.name;
    // Five times the promise, for the largest error of an element. The contribution of one key tile is much larger.
    const double mean_square = squares / static_cast<double>(expected.size());
    result.tolerance = static_cast<float>(5 * promise * std::sqrt(mean_square));
    write(result.first, content);
    write(result.expected, bytes_of(rounded.data(), rounded.size() * sizeof(float)));
  }
  void write(GuardedMemory& memory, const std::vector<std::byte>& content) const {
    gpu::check(DriverOfTests::get().copy_to_device(reinterpret_cast<gpu::DevicePointer>(memory.data()), content.data(),
                                                   content.size(), gpu_.stream()),
               "copying to the GPU");
    gpu_.synchronize();
  }

  const StressCase& test_;
  const Gpu& gpu_;
  const Comparison& comparison_;
  int64_t batch_ = 0;
  int64_t output_rows_ = 0;
  std::vector<std::unique_ptr<GuardedMemory>> operands_, offsets_;
  GuardedMemory counts_;
  Attention attention_;
  TensorView grad_output_;
  std::vector<Call> calls_;
};

double number_from(const char* variable, double otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::atof(text) : otherwise;
}

TEST(GpuStress, ResultsDoNotDependOnTheOrderOfEvents) {
  if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  const double most_seconds = number_from("GDPA_STRESS_SECONDS", 0);
  const bool by_time = most_seconds > 0;
  const double most_calls = number_from("GDPA_STRESS_LAUNCHES", 100'000);
  const Comparison comparison(Gpu::get());
  std::vector<std::unique_ptr<Stress>> stresses;
  const char* const selected = std::getenv("GDPA_STRESS_CASES");
  for (const StressCase& test : cases()) {
    if (selected != nullptr && !std::string_view(test.name).starts_with(selected)) continue;
    stresses.push_back(std::make_unique<Stress>(test, comparison));
    stresses.back()->count_kernels();
    if (&test == &cases().back()) {
      EXPECT_NE(stresses.back()->forward_reason().find("from a counter"), std::string::npos);
    }
  }
  ASSERT_FALSE(stresses.empty()) << "no problem has a name that begins with " << selected;
  if (HasFailure()) return;  // the first results are wrong

  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  double calls = 0, last_report = 0;
  constexpr int most_rounds = 25;  // between comparisons on the host
  const auto is_over = [&] { return by_time ? seconds() >= most_seconds : calls >= most_calls; };
  int rounds = 1;
  while (!is_over()) {
    for (std::size_t i = 0; i < stresses.size() && !is_over(); ++i) {
      const std::string differences = stresses[i]->run(rounds);
      calls += rounds * stresses[i]->calls();
      ASSERT_EQ(differences, "") << stresses[i]->name() << ", after " << calls << " calls";
      if (seconds() - last_report > 10) {
        last_report = seconds();
        fmt::print("gpu_stress_test: {:.0f} calls in {:.0f} s\n", calls, last_report);
        std::fflush(stdout);
      }
    }
    rounds = std::min(2 * rounds, most_rounds);
  }
  RecordProperty("calls under stress", static_cast<int>(calls));
  fmt::print("gpu_stress_test: {:.0f} calls in {:.0f} s, no difference\n", calls, seconds());
}

}  // namespace
}  // namespace gdpa::test

int main(int argc, char** argv) {
  ::setenv("GDPA_RANDOM_DELAYS", "1", 0);  // before the first kernel is generated; 0 disables the delays
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
