// The promises of the CPU backend other than accuracy: equal bits from run to run, independent sequences,
// offsets beyond 2^31, bounded memory, and calls from several threads at once.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <thread>
#include <type_traits>
#include <vector>

#include "api/checks.h"
#include "cpu/backend.h"
#include "cpu/workspace.h"
#include "gdpa/attention.h"
#include "plan/cpu_plan.h"

namespace gdpa {
namespace {

using Floats = std::vector<float>;

Floats random_floats(int64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<int64_t> cumulative(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), offsets.begin() + 1);
  return offsets;
}

/// A float32 self-attention problem with all its memory, and its results.
struct Example {
  std::vector<int64_t> offsets;
  int64_t tokens;
  int64_t heads;
  int64_t head_dim;
  Floats query, key, value, grad_output;
  Floats output, grad_query, grad_key, grad_value;
  Attention attention;

  Example(const std::vector<int64_t>& lengths, int64_t heads_, int64_t head_dim_, const Mask& mask = Mask::all())
      : offsets(cumulative(lengths)), tokens(offsets.back()), heads(heads_), head_dim(head_dim_) {
    const int64_t count = tokens * heads * head_dim;
    query = random_floats(count, 1);
    key = random_floats(count, 2);
    value = random_floats(count, 3);
    grad_output = random_floats(count, 4);
    attention.mask = mask;
    attention.activation = Activation("exp(-s * s) + s");
  }
  Example(const Example&) = delete;
  Example& operator=(const Example&) = delete;

  TensorView view(const Floats& values) const {
    return TensorView::contiguous(values.data(), DType::float32, {tokens, heads, head_dim});
  }
  MutableTensorView view(Floats& values) const {
    values.assign(static_cast<std::size_t>(tokens * heads * head_dim), std::numeric_limits<float>::quiet_NaN());
    return MutableTensorView::contiguous(values.data(), DType::float32, {tokens, heads, head_dim});
  }

  void run(const std::vector<ParameterGradient>& grad_parameters = {}) {
    attention.query = view(std::as_const(query));
    attention.key = view(std::as_const(key));
    attention.value = view(std::as_const(value));
    attention.cu_seqlens_q = attention.cu_seqlens_k =
        TensorView::contiguous(offsets.data(), DType::int64, {static_cast<int64_t>(offsets.size())});
    forward(attention, view(output));
    backward(attention, view(std::as_const(grad_output)), view(grad_query), view(grad_key), view(grad_value),
             grad_parameters);
  }

  std::vector<Floats> results() const { return {output, grad_query, grad_key, grad_value}; }
};

bool equal_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void expect_same_bits_every_time(Example& example) {
  example.run();
  const std::vector<Floats> first = example.results();
  for (int i = 0; i < 20; ++i) {
    example.run();
    const std::vector<Floats> again = example.results();
    for (std::size_t r = 0; r < first.size(); ++r) ASSERT_TRUE(equal_bits(first[r], again[r])) << "run " << i;
  }
}

TEST(CpuBackend, equal_bits_from_run_to_run_for_many_sequences) {
  Example example({100, 3, 250, 0, 77, 500, 20}, 3, 64, Mask::causal());
  expect_same_bits_every_time(example);
}

TEST(CpuBackend, equal_bits_from_run_to_run_for_one_sequence_that_threads_share) {
  Example example({1500}, 1, 64);
  example.attention.mask = Mask::window(700, 100);
  expect_same_bits_every_time(example);
}

/// Keys and values, then queries, shared by the batch: their gradients are sums over it.
TEST(CpuBackend, equal_bits_from_run_to_run_for_shared_operands) {
  Example example(std::vector<int64_t>(30, 120), 2, 64);
  const TensorView shared = TensorView::contiguous(example.key.data(), DType::float32, {90, 2, 64});
  Floats sums[2];
  for (bool shared_queries : {false, true}) {
    Attention attention = example.attention;
    attention.query = shared_queries ? shared : example.view(std::as_const(example.query));
    attention.key = attention.value = shared_queries ? example.view(std::as_const(example.query)) : shared;
    const TensorView offsets = TensorView::contiguous(example.offsets.data(), DType::int64, {31});
    (shared_queries ? attention.cu_seqlens_k : attention.cu_seqlens_q) = offsets;
    const int64_t rows = shared_queries ? 30 * 90 : example.tokens;
    const Floats grad_output = random_floats(rows * 128, 9);
    Floats first;
    for (int i = 0; i < 20; ++i) {
      Floats large[2] = {Floats(static_cast<std::size_t>(example.tokens * 128)),
                         Floats(static_cast<std::size_t>(example.tokens * 128))};
      for (Floats& sum : sums) sum.assign(90 * 128, 0.0F);
      auto of_shared = [&](Floats& values) {
        return MutableTensorView::contiguous(values.data(), DType::float32, {90, 2, 64});
      };
      auto of_jagged = [&](Floats& values) {
        return MutableTensorView::contiguous(values.data(), DType::float32, {example.tokens, 2, 64});
      };
      const TensorView grad = TensorView::contiguous(grad_output.data(), DType::float32, {rows, 2, 64});
      if (shared_queries) {
        backward(attention, grad, of_shared(sums[0]), of_jagged(large[0]), of_jagged(large[1]));
      } else {
        backward(attention, grad, of_jagged(large[0]), of_shared(sums[0]), of_shared(sums[1]));
      }
      if (i == 0) first = sums[0];
      ASSERT_TRUE(equal_bits(first, sums[0])) << "run " << i;
    }
  }
}

TEST(CpuBackend, nothing_of_a_sequence_reaches_its_neighbours) {
  const std::vector<int64_t> lengths = {37, 30, 45};
  Example clean(lengths, 2, 40);
  clean.run();
  for (float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Example poisoned(lengths, 2, 40);
    const auto begin = static_cast<std::size_t>(37 * 2 * 40);
    const auto end = static_cast<std::size_t>(67 * 2 * 40);
    for (Floats* operand : {&poisoned.query, &poisoned.key, &poisoned.value, &poisoned.grad_output}) {
      std::fill(operand->begin() + static_cast<std::ptrdiff_t>(begin),
                operand->begin() + static_cast<std::ptrdiff_t>(end), poison);
    }
    poisoned.run();
    const std::vector<Floats> expected = clean.results();
    const std::vector<Floats> actual = poisoned.results();
    for (std::size_t r = 0; r < expected.size(); ++r) {
      for (std::size_t i = 0; i < expected[r].size(); ++i) {
        if (i >= begin && i < end) continue;
        ASSERT_EQ(actual[r][i], expected[r][i]) << "result " << r << " element " << i;
      }
      EXPECT_FALSE(std::isfinite(actual[r][begin])) << "the poison itself should have been computed with";
    }
  }
}

/// Address space without physical memory until it is accessed.
class SparseFloats {
 public:
  explicit SparseFloats(int64_t count) : bytes_(static_cast<std::size_t>(count) * sizeof(float)) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~SparseFloats() {
    if (is_there()) munmap(memory_, bytes_);
  }
  SparseFloats(const SparseFloats&) = delete;
  SparseFloats& operator=(const SparseFloats&) = delete;
  bool is_there() const { return memory_ != MAP_FAILED; }
  float* data() { return static_cast<float*>(memory_); }

 private:
  std::size_t bytes_;
  void* memory_;
};

TEST(CpuBackend, rows_may_lie_further_apart_than_32_bits_count) {
  constexpr int64_t length = 20;
  constexpr int64_t width = 24;
  constexpr int64_t stride = (int64_t{1} << 28) + 8;
  SparseFloats sparse[7] = {SparseFloats(length * stride), SparseFloats(length * stride), SparseFloats(length * stride),
                            SparseFloats(length * stride), SparseFloats(length * stride), SparseFloats(length * stride),
                            SparseFloats(length * stride)};
  for (const SparseFloats& memory : sparse) {
    if (!memory.is_there()) GTEST_SKIP() << "the system gives no sparse address space";
  }
  Example dense({13, 7}, 1, width);
  dense.run();
  auto spread = [&](const Floats& values, float* to) {
    for (int64_t i = 0; i < length; ++i) std::copy_n(values.data() + i * width, width, to + i * stride);
  };
  auto far = [&](auto view) {
    view.strides = {stride, width, 1, 0};
    return view;
  };
  const Floats* inputs[4] = {&dense.query, &dense.key, &dense.value, &dense.grad_output};
  for (int i = 0; i < 4; ++i) spread(*inputs[i], sparse[i].data());
  auto input = [&](int i) { return far(TensorView::contiguous(sparse[i].data(), DType::float32, {length, 1, width})); };
  auto result = [&](int i) {
    return far(MutableTensorView::contiguous(sparse[i].data(), DType::float32, {length, 1, width}));
  };
  Attention attention = dense.attention;
  attention.query = input(0);
  attention.key = input(1);
  attention.value = input(2);
  auto expect_equal = [&](int i, const Floats& expected) {
    for (int64_t row = 0; row < length; ++row) {
      for (int64_t j = 0; j < width; ++j) {
        ASSERT_EQ(sparse[i].data()[row * stride + j], expected[static_cast<std::size_t>(row * width + j)]);
      }
    }
  };
  forward(attention, result(4));
  expect_equal(4, dense.output);
  backward(attention, input(3), result(4), result(5), result(6));
  expect_equal(4, dense.grad_query);
  expect_equal(5, dense.grad_key);
  expect_equal(6, dense.grad_value);
}

TEST(CpuBackend, threads_hold_no_more_than_the_plan_says) {
  Example example({5000}, 1, 64, Mask::window(50, 50));
  example.run();
  const int64_t planned = std::max(explain(example.attention, Direction::forward).workspace_bytes,
                                   explain(example.attention, Direction::backward).workspace_bytes);
  EXPECT_GT(cpu::workspace_bytes_held(), 0);
  EXPECT_LE(cpu::workspace_bytes_held(), int64_t{std::max(2U, std::thread::hardware_concurrency())} * (64 << 20));
  EXPECT_LT(planned, int64_t{std::max(2U, std::thread::hardware_concurrency())} * (64 << 20));
}

TEST(CpuBackend, the_memory_of_a_thread_is_counted_once_however_often_it_grows) {
  std::thread([] {
    const int64_t before = cpu::workspace_bytes_held();
    for (const int64_t bytes : {1000, 500, 4000, 100'000}) cpu::thread_workspace(bytes);
    EXPECT_EQ(cpu::workspace_bytes_held() - before, 100'000);
  }).join();
}

TEST(CpuBackend, a_thread_gives_its_memory_back_when_it_ends) {
  const int64_t before = cpu::workspace_bytes_held();
  std::thread([] { cpu::thread_workspace(1 << 20); }).join();
  EXPECT_EQ(cpu::workspace_bytes_held(), before);
}

TEST(CpuBackend, several_threads_may_call_at_once) {
  Example expected({300, 40, 0, 90}, 2, 32);
  expected.run();
  std::vector<std::thread> callers;
  std::vector<int> differences(4, 0);
  for (std::size_t caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      for (int i = 0; i < 10; ++i) {
        Example example({300, 40, 0, 90}, 2, 32);
        example.run();
        const std::vector<Floats> actual = example.results();
        for (std::size_t r = 0; r < actual.size(); ++r) {
          if (!equal_bits(actual[r], expected.results()[r])) ++differences[caller];
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(differences, std::vector<int>(4, 0));
}

/// Tiles are padded with rows of zeros, where this function and its derivative with respect to a are infinite and f' is
/// not a number. The rows that a mask excludes are zeros too. The masks bring every form of a tile: full, with a part
/// of the columns, with rows without keys, and, of an expression, decided by intervals or computed for each score.
TEST(CpuBackend, what_pads_a_tile_and_what_a_mask_excludes_reach_no_result) {
  const std::vector<int64_t> lengths = {37, 1, 70, 150, 16};
  const auto is_excluded_query = [](int64_t i) { return i == 3 || i == 35; };
  const auto is_excluded_key = [](int64_t j) { return j == 0 || j == 21; };
  struct Case {
    const char* name;
    Mask window;
    const char* expression;
    bool has_zeros;  ///< the excluded rows are zeros
  };
  const Case cases[] = {
      {"all", Mask::all(), nullptr, false},
      {"causal", Mask::causal(), nullptr, false},
      {"window", Mask::window(5, 3), nullptr, false},
      {"expression that keeps all", Mask::all(), "q_idx >= 0", false},
      {"causal expression", Mask::all(), "kv_idx <= q_idx", false},
      {"excluded queries and keys", Mask::all(), "(q_idx != 3) & (q_idx != 35) & (kv_idx != 0) & (kv_idx != 21)", true},
      {"the last column of each tile of 16", Mask::all(), "(kv_idx - kv_idx // 16 * 16 == 15) | (kv_idx == len_k - 1)",
       false}};
  Floats numbers(2, 1.5F), grad_numbers(2);
  for (const Case& of : cases) {
    SCOPED_TRACE(of.name);
    Example example(lengths, 2, 16, of.window);
    example.attention.activation = Activation("a * log(s * s)", {}, {"a"});
    example.attention.parameters = {{"a", TensorView::contiguous(numbers.data(), DType::float32, {2})}};
    if (of.expression != nullptr) example.attention.mask_expression = MaskExpression(of.expression);
    if (of.has_zeros) {
      for (std::size_t b = 0; b < lengths.size(); ++b) {
        for (int64_t row = 0; row < lengths[b]; ++row) {
          const auto first = static_cast<std::ptrdiff_t>((example.offsets[b] + row) * 2 * 16);
          if (is_excluded_query(row)) std::fill_n(example.query.begin() + first, 2 * 16, 0.0F);
          if (is_excluded_key(row)) std::fill_n(example.key.begin() + first, 2 * 16, 0.0F);
        }
      }
    }
    grad_numbers.assign(2, std::numeric_limits<float>::quiet_NaN());
    example.run({{"a", MutableTensorView::contiguous(grad_numbers.data(), DType::float32, {2})}});
    std::vector<Floats> results = example.results();
    results.push_back(grad_numbers);
    Floats grad_value_alone;  // without dP
    backward(example.attention, example.view(std::as_const(example.grad_output)), {}, {},
             example.view(grad_value_alone));
    results.push_back(grad_value_alone);
    for (std::size_t r = 0; r < results.size(); ++r) {
      for (std::size_t i = 0; i < results[r].size(); ++i) {
        ASSERT_TRUE(std::isfinite(results[r][i])) << "result " << r << " element " << i << ": " << results[r][i];
      }
    }
  }
}

/// The workers of a data loader are forked processes. They do not inherit the threads of the parent.
TEST(CpuBackend, a_forked_child_may_call) {
  Example example({300, 200, 250}, 2, 64);
  example.run();
  const std::vector<Floats> expected = example.results();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    example.run();
    const std::vector<Floats> actual = example.results();
    bool equal = true;
    for (std::size_t r = 0; r < actual.size(); ++r) equal = equal && equal_bits(actual[r], expected[r]);
    _exit(equal ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

TEST(CpuBackend, queries_without_keys_and_keys_without_queries_get_zeros) {
  const std::vector<int64_t> offsets_q = {0, 3, 3};
  const std::vector<int64_t> offsets_k = {0, 0, 2};
  const Floats query(3 * 8, 1.0F);
  const Floats key(2 * 8, 1.0F);
  auto view = [](const Floats& values) {
    return TensorView::contiguous(values.data(), DType::float32, {static_cast<int64_t>(values.size()) / 8, 1, 8});
  };
  auto result = [](Floats& values) {
    return MutableTensorView::contiguous(values.data(), DType::float32,
                                         {static_cast<int64_t>(values.size()) / 8, 1, 8});
  };
  Attention attention;
  attention.query = view(query);
  attention.key = attention.value = view(key);
  attention.cu_seqlens_q = TensorView::contiguous(offsets_q.data(), DType::int64, {3});
  attention.cu_seqlens_k = TensorView::contiguous(offsets_k.data(), DType::int64, {3});
  attention.activation = Activation("1");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Floats output(3 * 8, nan), grad_query(3 * 8, nan), grad_key(2 * 8, nan), grad_value(2 * 8, nan);
  forward(attention, result(output));
  backward(attention, view(query), result(grad_query), result(grad_key), result(grad_value));
  EXPECT_EQ(output, Floats(3 * 8, 0.0F));
  EXPECT_EQ(grad_query, Floats(3 * 8, 0.0F));
  EXPECT_EQ(grad_key, Floats(2 * 8, 0.0F));
  EXPECT_EQ(grad_value, Floats(2 * 8, 0.0F));
}

/// A value for all elements of each operand. With these values, the floating-point unit reports an overflow or a
/// division by zero if and only if backward computes one certain product or function. The report does not depend on
/// what happens to the result, so it also shows a computation with an unused result.
struct Witness {
  const char* computed;
  const char* function;
  float query, key, value, grad_output;
  bool (*is_needed)(const WantedGradients&);
};

TEST(CpuBackend, backward_computes_nothing_that_only_an_unwanted_gradient_needs) {
  constexpr float large = 1e30F;  // the product of two such numbers is above the range of fp32
  const auto for_scores = [](const WantedGradients& wanted) { return wanted.query || wanted.key; };
  const Witness witnesses[] = {
      {"dQ = dS K", "s", 0, large, 1, large, [](const WantedGradients& wanted) { return wanted.query; }},
      {"dK = dS^T Q", "s", large, 0, 1, large, [](const WantedGradients& wanted) { return wanted.key; }},
      {"dV = P^T dO", "s", large, 1, 0, large, [](const WantedGradients& wanted) { return wanted.value; }},
      {"dP = dO V^T", "s", 0, 0, large, large, for_scores},
      {"f'(0) = 1 / 0", "sqrt(s)", 0, 0, 1, 1, for_scores}};
  constexpr int64_t rows = 5, head_dim = 16;
  const auto filled = [](float value) { return Floats(rows * head_dim, value); };
  const auto view = [](auto& values) {
    using View =
        std::conditional_t<std::is_const_v<std::remove_reference_t<decltype(values)>>, TensorView, MutableTensorView>;
    return View::contiguous(values.data(), DType::float32, {rows, 1, head_dim});
  };
  for (const Witness& witness : witnesses) {
    const Floats query = filled(witness.query), key = filled(witness.key), value = filled(witness.value),
                 grad_output = filled(witness.grad_output);
    Floats grad_query = filled(0), grad_key = filled(0), grad_value = filled(0);
    // One thread is the calling thread, which has the reports.
    const Attention attention{.query = view(query),
                              .key = view(key),
                              .value = view(value),
                              .activation = Activation(witness.function),
                              .scale = 1,
                              .threads = 1};
    for (int choice = 1; choice < 8; ++choice) {
      const WantedGradients wanted{(choice & 1) != 0, (choice & 2) != 0, (choice & 4) != 0};
      const auto gradient = [&](bool is_wanted, Floats& values) {
        return is_wanted ? view(values) : MutableTensorView{};
      };
      std::feclearexcept(FE_ALL_EXCEPT);
      backward(attention, view(grad_output), gradient(wanted.query, grad_query), gradient(wanted.key, grad_key),
               gradient(wanted.value, grad_value));
      EXPECT_EQ(std::fetestexcept(FE_OVERFLOW | FE_DIVBYZERO) != 0, witness.is_needed(wanted))
          << witness.computed << ", wanted: dQ " << wanted.query << ", dK " << wanted.key << ", dV " << wanted.value;
    }
  }
}

}  // namespace
}  // namespace gdpa
