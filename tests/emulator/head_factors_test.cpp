// Forward multiplies Q by numbers of the head and rounds it a second time. The error of O stays below the promise of
// docs/accuracy.md, for an activation with numbers of very different sizes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "device.h"
#include "drawn_numbers.h"
#include "gdpa/attention.h"
#include "promise.h"

namespace gdpa::test {
namespace {

constexpr Device cuda{DeviceKind::cuda, 0};
constexpr int64_t heads = 4, rows = 150;
constexpr std::size_t guard = 256;

/// O of the definition, with the causal mask.
std::vector<double> expected(const std::vector<double>& query, const std::vector<double>& key,
                             const std::vector<double>& value, const std::vector<double>& a,
                             const std::vector<double>& b) {
  std::vector<double> output(query.size());
  const std::size_t head_dim = query.size() / static_cast<std::size_t>(rows * heads);
  const auto at = [&](int64_t row, std::size_t head) {
    return (static_cast<std::size_t>(row * heads) + head) * head_dim;
  };
  for (std::size_t head = 0; head < a.size(); ++head) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        double s = 0;
        for (std::size_t x = 0; x < head_dim; ++x) s += query[at(i, head) + x] * key[at(j, head) + x];
        s /= std::sqrt(static_cast<double>(head_dim));
        const double p = a[head] * s / (1 + std::exp(-b[head] * s));
        for (std::size_t x = 0; x < head_dim; ++x) output[at(i, head) + x] += p * value[at(j, head) + x];
      }
    }
  }
  return output;
}

class HeadFactors : public testing::TestWithParam<int64_t> {};

TEST_P(HeadFactors, OutputIsWithinThePromiseOfEachHead) {
  const int64_t head_dim = GetParam();
  std::random_device seeds;
  const unsigned seed = seeds();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto drawn = [&] { return drawn_numbers(random, rows * heads * head_dim, DType::bfloat16); };
  const std::vector<double> query = drawn(), key = drawn(), value = drawn();
  const std::vector<double> a = {1.5, -0.25, 3, 1}, b = {1.75, 0, -0.5, 60};
  const Gpu& gpu = Gpu::get();
  const GuardedMemory q(gpu, stored(query, DType::bfloat16), guard), k(gpu, stored(key, DType::bfloat16), guard),
      v(gpu, stored(value, DType::bfloat16), guard), of_a(gpu, stored(a, DType::float32), guard),
      of_b(gpu, stored(b, DType::float32), guard);
  GuardedMemory output(gpu, std::vector<std::byte>(query.size() * 2, std::byte{0xff}), guard);
  const auto view = [&](const GuardedMemory& memory) {
    return TensorView::contiguous(memory.data(), DType::bfloat16, {1, rows, heads, head_dim}, cuda);
  };
  Attention attention;
  attention.query = view(q);
  attention.key = view(k);
  attention.value = view(v);
  attention.activation = Activation("a * s * sigmoid(b * s)", {}, {"a", "b"});
  attention.parameters = {{"a", TensorView::contiguous(of_a.data(), DType::float32, {heads}, cuda)},
                          {"b", TensorView::contiguous(of_b.data(), DType::float32, {heads}, cuda)}};
  attention.mask = Mask::causal();
  attention.stream = gpu.stream();
  forward(attention, MutableTensorView::contiguous(output.data(), DType::bfloat16, {1, rows, heads, head_dim}, cuda));
  output.fetch();
  EXPECT_TRUE(output.guards_are_intact());
  const std::vector<std::byte> content = output.content();
  const std::vector<double> exact = expected(query, key, value, a, b);
  for (std::size_t head = 0; head < a.size(); ++head) {
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      if (i / static_cast<std::size_t>(head_dim) % heads != head) continue;
      error += std::pow(to_double(DType::bfloat16, content.data() + i * 2) - exact[i], 2);
      norm += std::pow(exact[i], 2);
    }
    const double promised = 2 * relative_bound(DType::bfloat16, Products::of_type);
    EXPECT_LE(std::sqrt(error), promised * std::sqrt(norm)) << "head " << head;
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, HeadFactors, testing::Values(64, 128, 192));

}  // namespace
}  // namespace gdpa::test
