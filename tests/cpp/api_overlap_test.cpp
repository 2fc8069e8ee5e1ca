// Whether two views overlap is known exactly, for every layout, by counting the bytes of both.
#include "api/overlap.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace gdpa::api {
namespace {

constexpr std::size_t memory_bytes = 4096;

/// The bytes of the view, one by one, as marks in a memory that begins at `base`.
std::vector<bool> marks(const TensorView& view, const std::byte* base) {
  std::vector<bool> marked(memory_bytes, false);
  std::vector<int64_t> starts = {static_cast<const std::byte*>(view.data) - base};
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.rank); ++i) {
    std::vector<int64_t> further;
    for (const int64_t start : starts) {
      for (int64_t n = 0; n < view.sizes[i]; ++n) {
        further.push_back(start + n * view.strides[i] * size_in_bytes(view.dtype));
      }
    }
    starts = further;
  }
  for (const int64_t start : starts) {
    for (int64_t byte = 0; byte < size_in_bytes(view.dtype); ++byte) {
      marked.at(static_cast<std::size_t>(start + byte)) = true;
    }
  }
  return marked;
}

bool have_a_byte_in_common(const TensorView& one, const TensorView& other, const std::byte* base) {
  const std::vector<bool> of_one = marks(one, base), of_other = marks(other, base);
  for (std::size_t i = 0; i < memory_bytes; ++i) {
    if (of_one[i] && of_other[i]) return true;
  }
  return false;
}

/// Returns a view with all of its bytes in the memory: small sizes, and strides of any sign or 0, often the strides of
/// `like`.
TensorView random_view(std::mt19937_64& random, const std::byte* base, const TensorView* like) {
  const auto up_to = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  TensorView view;
  view.dtype = up_to(1) == 0 ? DType::bfloat16 : DType::float32;
  view.rank = static_cast<int>(1 + up_to(2));
  const int64_t bytes = size_in_bytes(view.dtype);
  int64_t before = 0, behind = bytes;
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.rank); ++i) {
    view.sizes[i] = up_to(40) == 0 ? 0 : 1 + up_to(6);
    view.strides[i] = like != nullptr && up_to(2) > 0 ? like->strides[i] : up_to(60) - 10;
    const int64_t reach = view.strides[i] * bytes * (view.sizes[i] - 1);
    (reach < 0 ? before : behind) += reach < 0 ? -reach : reach;
  }
  const int64_t room = static_cast<int64_t>(memory_bytes) - before - behind;
  view.data = base + before + up_to(std::min<int64_t>(room / bytes, 100)) * bytes;
  return view;
}

TEST(Overlap, IsWhatCountingTheBytesSays) {
  alignas(8) static std::byte memory[memory_bytes];
  std::mt19937_64 random(1);
  int apart_in_one_range = 0;
  for (int i = 0; i < 20000; ++i) {
    const TensorView one = random_view(random, memory, nullptr);
    const TensorView other = random_view(random, memory, &one);
    const bool expected = have_a_byte_in_common(one, other, memory);
    const Bytes a = Bytes::of(one), b = Bytes::of(other);
    ASSERT_EQ(overlap(a, b), expected) << "pair " << i;
    ASSERT_EQ(overlap(b, a), expected) << "pair " << i;
    apart_in_one_range += static_cast<int>(!expected && a.begin < b.end && b.begin < a.end);
  }
  EXPECT_GT(apart_in_one_range, 500) << "the search itself is hardly tested";
}

TEST(Overlap, OfALongFusedProjectionIsFoundAtOnce) {
  constexpr int64_t tokens = int64_t{1} << 40, heads = 16, head_dim = 128;
  const auto part = [](int64_t element) {
    TensorView view = TensorView::contiguous(nullptr, DType::bfloat16, {tokens, heads, head_dim});
    view.data = reinterpret_cast<const void*>(element * 2);  // never read
    view.strides[0] = 3 * heads * head_dim;
    return Bytes::of(view);
  };
  EXPECT_FALSE(overlap(part(4096), part(4096 + heads * head_dim)));
  EXPECT_FALSE(overlap(part(4096), part(4096 + 2 * heads * head_dim)));
  EXPECT_TRUE(overlap(part(4096), part(4096 + heads * head_dim - 1)));
  EXPECT_TRUE(overlap(part(4096), part(4096 + 3 * heads * head_dim)));
}

}  // namespace
}  // namespace gdpa::api
