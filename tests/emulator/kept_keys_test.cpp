// Forward with few keys: K and V of a head stay in shared memory for several query tiles. In a small batch, the CTAs of
// a contiguous range have different heads, and a head has more tiles than the tile scheduler finds at once. In a large
// batch, CTAs take the tiles of a head from a counter.
#include <gtest/gtest.h>

#include <algorithm>
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
constexpr DType dtype = DType::bfloat16;
constexpr int64_t heads_q = 6, heads_k = 3, head_dim = 64;  // the emulated GPU has three multiprocessors
constexpr std::size_t guard = 256;

std::vector<int64_t> offsets_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets = {0};
  for (const int64_t length : lengths) offsets.push_back(offsets.back() + length);
  return offsets;
}

std::vector<std::byte> bytes_of(const std::vector<int64_t>& numbers) {
  const auto* const first = reinterpret_cast<const std::byte*>(numbers.data());
  return {first, first + numbers.size() * sizeof(int64_t)};
}

/// Expects O of sequences with these lengths to be near the definition.
void expect_definition(std::mt19937& random, const std::vector<int64_t>& lengths_q,
                       const std::vector<int64_t>& lengths_k) {
  const std::vector<int64_t> offsets_q = offsets_of(lengths_q), offsets_k = offsets_of(lengths_k);
  const int64_t rows_q = offsets_q.back(), rows_k = offsets_k.back();
  const std::vector<double> query = drawn_numbers(random, rows_q * heads_q * head_dim, dtype),
                            key = drawn_numbers(random, rows_k * heads_k * head_dim, dtype),
                            value = drawn_numbers(random, rows_k * heads_k * head_dim, dtype);
  const Gpu& gpu = Gpu::get();
  const GuardedMemory q(gpu, stored(query, dtype), guard), k(gpu, stored(key, dtype), guard),
      v(gpu, stored(value, dtype), guard), cu_q(gpu, bytes_of(offsets_q), guard), cu_k(gpu, bytes_of(offsets_k), guard);
  GuardedMemory output(gpu, std::vector<std::byte>(query.size() * 2, std::byte{0xff}), guard);
  const auto view = [](const GuardedMemory& memory, int64_t rows, int64_t heads) {
    return TensorView::contiguous(memory.data(), dtype, {rows, heads, head_dim}, cuda);
  };
  const auto offsets = [](const GuardedMemory& memory, const std::vector<int64_t>& numbers) {
    return TensorView::contiguous(memory.data(), DType::int64, {static_cast<int64_t>(numbers.size())}, cuda);
  };
  Attention attention;
  attention.query = view(q, rows_q, heads_q);
  attention.key = view(k, rows_k, heads_k);
  attention.value = view(v, rows_k, heads_k);
  attention.cu_seqlens_q = offsets(cu_q, offsets_q);
  attention.cu_seqlens_k = offsets(cu_k, offsets_k);
  attention.activation = Activation("relu(s)");
  attention.stream = gpu.stream();
  forward(attention, MutableTensorView::contiguous(output.data(), dtype, {rows_q, heads_q, head_dim}, cuda));
  output.fetch();
  EXPECT_TRUE(output.guards_are_intact());
  const std::vector<std::byte> content = output.content();

  const auto at = [](int64_t row, int64_t head, int64_t heads) {
    return static_cast<std::size_t>((row * heads + head) * head_dim);
  };
  for (std::size_t entry = 0; entry + 1 < offsets_q.size(); ++entry) {
    for (int64_t head = 0; head < heads_q; ++head) {
      double error = 0, norm = 0;
      for (int64_t i = offsets_q[entry]; i < offsets_q[entry + 1]; ++i) {
        std::vector<double> exact(head_dim);
        for (int64_t j = offsets_k[entry]; j < offsets_k[entry + 1]; ++j) {
          const double* const row_q = &query[at(i, head, heads_q)];
          const std::size_t of_key = at(j, head / (heads_q / heads_k), heads_k);
          double s = 0;
          for (std::size_t x = 0; x < head_dim; ++x) s += row_q[x] * key[of_key + x];
          s = std::max(0.0, s / 8);
          for (std::size_t x = 0; x < head_dim; ++x) exact[x] += s * value[of_key + x];
        }
        for (std::size_t x = 0; x < head_dim; ++x) {
          const double computed = to_double(dtype, content.data() + (at(i, head, heads_q) + x) * 2);
          error += std::pow(computed - exact[x], 2);
          norm += std::pow(exact[x], 2);
        }
      }
      const double promised = 2 * relative_bound(dtype, Products::of_type);
      EXPECT_LE(std::sqrt(error), promised * std::sqrt(norm)) << "entry " << entry << ", head " << head;
    }
  }
}

TEST(KeptKeys, OutputOfHeadsWithManyQueryTilesFollowsTheDefinition) {
  std::random_device seeds;
  const unsigned seed = seeds();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  // 20 query tiles, none, one, and rows without keys.
  expect_definition(random, {2500, 0, 1, 200, 700}, {200, 5, 128, 0, 90});
}

TEST(KeptKeys, OutputOfManyHeadsFollowsTheDefinition) {
  std::random_device seeds;
  const unsigned seed = seeds();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::vector<int64_t> lengths_q, lengths_k;
  for (int entry = 0; entry < 40; ++entry) {
    lengths_q.push_back(random() % 5 == 0 ? 0 : static_cast<int64_t>(random() % 400));
    lengths_k.push_back(random() % 5 == 0 ? 0 : static_cast<int64_t>(random() % 260));
  }
  expect_definition(random, lengths_q, lengths_k);
}

}  // namespace
}  // namespace gdpa::test
