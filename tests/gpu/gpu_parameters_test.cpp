// Parameters of the call: the GPU kernels with numbers for each query head, forward and backward, against the
// definition in fp64, and kernels that are compiled once for all numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "device.h"
#include "gdpa/attention.h"
#include "promise.h"
#include "strided.h"

namespace gdpa::test {
namespace {

constexpr Device cuda{DeviceKind::cuda, 0};
constexpr int64_t heads_q = 4, heads_k = 2;

struct Configuration {
  DType dtype;
  int64_t head_dim;
  bool deterministic;
  bool is_causal;
};

/// A jagged batch of random operands, which are rounded to the type, and f(s) = a s sigmoid(b s) with a and b for each
/// query head.
class Problem {
 public:
  explicit Problem(const Configuration& configuration, unsigned seed) : c_(configuration), random_(seed) {
    const std::vector<int64_t> lengths_q = {70, 0, 33, 150}, lengths_k = {140, 5, 1, 90};
    for (const int64_t length : lengths_q) offsets_q_.push_back(offsets_q_.back() + length);
    for (const int64_t length : lengths_k) offsets_k_.push_back(offsets_k_.back() + length);
    query_ = drawn(rows_q() * heads_q);
    key_ = drawn(rows_k() * heads_k);
    value_ = drawn(rows_k() * heads_k);
    grad_output_ = drawn(rows_q() * heads_q);
    std::uniform_real_distribution<float> numbers(0.5f, 2.0f);
    for (auto* parameter : {&a_, &b_}) {
      for (int64_t h = 0; h < heads_q; ++h) parameter->push_back(numbers(random_));
    }
  }

  /// The results of the GPU: O, dQ, dK, dV.
  std::vector<std::vector<double>> computed() {
    const Gpu& gpu = Gpu::get();
    const GuardedMemory query(gpu, stored(query_), guard), key(gpu, stored(key_), guard),
        value(gpu, stored(value_), guard), grad_output(gpu, stored(grad_output_), guard),
        cu_q(gpu, bytes_of(offsets_q_), guard), cu_k(gpu, bytes_of(offsets_k_), guard), a(gpu, bytes_of(a_), guard),
        b(gpu, bytes_of(b_), guard);
    const std::vector<std::byte> poison_q(query_.size() * element_bytes(), std::byte{0xff}),
        poison_k(key_.size() * element_bytes(), std::byte{0xff});
    GuardedMemory output(gpu, poison_q, guard), grad_query(gpu, poison_q, guard), grad_key(gpu, poison_k, guard),
        grad_value(gpu, poison_k, guard);
    const auto in = [&](const GuardedMemory& memory, int64_t rows, int64_t heads) {
      return TensorView::contiguous(memory.data(), c_.dtype, {rows, heads, c_.head_dim}, cuda);
    };
    const auto out = [&](const GuardedMemory& memory, int64_t rows, int64_t heads) {
      return MutableTensorView::contiguous(memory.data(), c_.dtype, {rows, heads, c_.head_dim}, cuda);
    };
    Attention attention;
    attention.query = in(query, rows_q(), heads_q);
    attention.key = in(key, rows_k(), heads_k);
    attention.value = in(value, rows_k(), heads_k);
    attention.cu_seqlens_q = TensorView::contiguous(cu_q.data(), DType::int64, {batch() + 1}, cuda);
    attention.cu_seqlens_k = TensorView::contiguous(cu_k.data(), DType::int64, {batch() + 1}, cuda);
    attention.activation = Activation("a * s * sigmoid(b * s)", {}, {"a", "b"});
    attention.parameters = {{"b", TensorView::contiguous(b.data(), DType::float32, {heads_q}, cuda)},
                            {"a", TensorView::contiguous(a.data(), DType::float32, {heads_q}, cuda)}};
    if (c_.is_causal) attention.mask = Mask::causal();
    attention.deterministic = c_.deterministic;
    attention.stream = gpu.stream();
    forward(attention, out(output, rows_q(), heads_q));
    backward(attention, in(grad_output, rows_q(), heads_q), out(grad_query, rows_q(), heads_q),
             out(grad_key, rows_k(), heads_k), out(grad_value, rows_k(), heads_k));
    std::vector<std::vector<double>> results;
    for (GuardedMemory* memory : {&output, &grad_query, &grad_key, &grad_value}) {
      memory->fetch();
      EXPECT_TRUE(memory->guards_are_intact());
      const std::vector<std::byte> content = memory->content();
      std::vector<double> numbers;
      for (std::size_t i = 0; i < content.size(); i += element_bytes()) {
        numbers.push_back(to_double(c_.dtype, content.data() + i));
      }
      results.push_back(std::move(numbers));
    }
    return results;
  }

  /// The same by the definition.
  std::vector<std::vector<double>> expected() const {
    std::vector<double> output(query_.size()), grad_query(query_.size()), grad_key(key_.size()),
        grad_value(key_.size());
    const double scale = 1 / std::sqrt(static_cast<double>(c_.head_dim));
    for (std::size_t entry = 0; entry + 1 < offsets_q_.size(); ++entry) {
      const int64_t length_q = offsets_q_[entry + 1] - offsets_q_[entry];
      const int64_t length_k = offsets_k_[entry + 1] - offsets_k_[entry];
      for (int64_t head = 0; head < heads_q; ++head) {
        const double a = static_cast<double>(a_[static_cast<std::size_t>(head)]);
        const double b = static_cast<double>(b_[static_cast<std::size_t>(head)]);
        for (int64_t i = 0; i < length_q; ++i) {
          for (int64_t j = 0; j < length_k; ++j) {
            if (c_.is_causal && j > i + length_k - length_q) continue;
            const std::size_t q = at(offsets_q_[entry] + i, head, heads_q);
            const std::size_t k = at(offsets_k_[entry] + j, head / (heads_q / heads_k), heads_k);
            double s = 0, dp = 0;
            for (std::size_t x = 0; x < width(); ++x) {
              s += query_[q + x] * key_[k + x];
              dp += grad_output_[q + x] * value_[k + x];
            }
            s *= scale;
            const double sigmoid = 1 / (1 + std::exp(-b * s));
            const double p = a * s * sigmoid, ds = dp * a * sigmoid * (1 + b * s * (1 - sigmoid));
            for (std::size_t x = 0; x < width(); ++x) {
              output[q + x] += p * value_[k + x];
              grad_value[k + x] += p * grad_output_[q + x];
              grad_query[q + x] += scale * ds * key_[k + x];
              grad_key[k + x] += scale * ds * query_[q + x];
            }
          }
        }
      }
    }
    return {output, grad_query, grad_key, grad_value};
  }

 private:
  static constexpr std::size_t guard = 256;

  template <class T>
  static std::vector<std::byte> bytes_of(const std::vector<T>& numbers) {
    const auto* const first = reinterpret_cast<const std::byte*>(numbers.data());
    return {first, first + numbers.size() * sizeof(T)};
  }
  std::vector<std::byte> stored(const std::vector<double>& numbers) const {
    std::vector<std::byte> bytes(numbers.size() * element_bytes());
    for (std::size_t i = 0; i < numbers.size(); ++i)
      from_double(c_.dtype, numbers[i], bytes.data() + i * element_bytes());
    return bytes;
  }
  std::vector<double> drawn(int64_t rows) {
    std::normal_distribution<double> normal;
    std::vector<double> numbers(static_cast<std::size_t>(rows * c_.head_dim));
    for (double& number : numbers) number = rounded(c_.dtype, normal(random_));
    return numbers;
  }
  std::size_t at(int64_t row, int64_t head, int64_t heads) const {
    return static_cast<std::size_t>((row * heads + head) * c_.head_dim);
  }
  std::size_t width() const { return static_cast<std::size_t>(c_.head_dim); }
  std::size_t element_bytes() const { return static_cast<std::size_t>(size_in_bytes(c_.dtype)); }
  int64_t batch() const { return static_cast<int64_t>(offsets_q_.size()) - 1; }
  int64_t rows_q() const { return offsets_q_.back(); }
  int64_t rows_k() const { return offsets_k_.back(); }

  Configuration c_;
  std::mt19937 random_;
  std::vector<int64_t> offsets_q_ = {0}, offsets_k_ = {0};
  std::vector<double> query_, key_, value_, grad_output_;
  std::vector<float> a_, b_;
};

class GpuParameters : public testing::TestWithParam<Configuration> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_P(GpuParameters, ResultsFollowTheDefinitionForEachHead) {
  std::random_device seeds;
  const unsigned seed = seeds();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Problem problem(GetParam(), seed);
  const auto computed = problem.computed(), expected = problem.expected();
  for (std::size_t result = 0; result < computed.size(); ++result) {
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < computed[result].size(); ++i) {
      error += std::pow(computed[result][i] - expected[result][i], 2);
      norm += std::pow(expected[result][i], 2);
    }
    const double bound = relative_bound(GetParam().dtype, Products::of_type);
    EXPECT_LE(std::sqrt(error), bound * std::sqrt(norm)) << "result " << result;
  }
}

std::string name_of(const testing::TestParamInfo<Configuration>& info) {
  const Configuration& c = info.param;
  return std::string(name(c.dtype)) + "_" + std::to_string(c.head_dim) + (c.deterministic ? "_deterministic" : "") +
         (c.is_causal ? "_causal" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Types, GpuParameters,
    testing::Values(Configuration{DType::bfloat16, 64, false, false}, Configuration{DType::bfloat16, 128, false, true},
                    Configuration{DType::bfloat16, 128, true, false}, Configuration{DType::bfloat16, 192, false, true},
                    Configuration{DType::float16, 64, true, true}, Configuration{DType::float32, 40, false, true},
                    Configuration{DType::float32, 40, true, false}),
    name_of);

}  // namespace
}  // namespace gdpa::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
