// Rows that no sequence covers are written all the same: zeros, so that no caller ever reads memory that was never set.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "gdpa/gdpa.h"

namespace gdpa {
namespace {

constexpr int64_t tokens = 6, heads = 2, head_dim = 4;
constexpr float poison = 12345.0F;

class UnusedRows : public testing::TestWithParam<std::vector<int32_t>> {
 protected:
  void expect_zeros_around_the_used(const std::vector<float>& values) const {
    constexpr int64_t row = heads * head_dim;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      if (at >= GetParam().front() * row && at < GetParam().back() * row) {
        EXPECT_NE(values[i], poison) << "element " << i;
      } else {
        EXPECT_EQ(values[i], 0.0F) << "element " << i;
      }
    }
  }

  static TensorView view(const std::vector<float>& values) {
    return TensorView::contiguous(values.data(), DType::float32, {tokens, heads, head_dim});
  }
  static MutableTensorView view(std::vector<float>& values) {
    return MutableTensorView::contiguous(values.data(), DType::float32, {tokens, heads, head_dim});
  }
};

TEST_P(UnusedRows, OfTheOutputAndTheGradientsAreZeros) {
  const std::vector<float> input(tokens * heads * head_dim, 0.5F);
  const std::vector<int32_t>& offsets = GetParam();
  const auto cu_seqlens = TensorView::contiguous(offsets.data(), DType::int32, {static_cast<int64_t>(offsets.size())});
  const Attention attention{.query = view(input),
                            .key = view(input),
                            .value = view(input),
                            .cu_seqlens_q = cu_seqlens,
                            .cu_seqlens_k = cu_seqlens,
                            .activation = Activation("sigmoid")};
  std::vector<std::vector<float>> results(4, std::vector<float>(input.size(), poison));
  forward(attention, view(results[0]));
  backward(attention, view(input), view(results[1]), view(results[2]), view(results[3]));
  for (const std::vector<float>& result : results) expect_zeros_around_the_used(result);
}

INSTANTIATE_TEST_SUITE_P(Offsets, UnusedRows,
                         testing::Values(std::vector<int32_t>{0, 6}, std::vector<int32_t>{0, 2, 5},
                                         std::vector<int32_t>{0, 0}, std::vector<int32_t>{0},
                                         std::vector<int32_t>{2, 4, 5}, std::vector<int32_t>{3}));

TEST(SharedOperand, HasAZeroGradientWhereTheBatchIsEmpty) {
  const std::vector<float> input(tokens * heads * head_dim, 0.5F);
  const std::vector<int32_t> offsets = {0};
  const auto shape = {tokens, heads, head_dim};
  std::vector<float> grad_key(input.size(), poison), grad_value(input.size(), poison);
  const Attention attention{
      .query = TensorView::contiguous(input.data(), DType::float32, {0, heads, head_dim}),
      .key = TensorView::contiguous(input.data(), DType::float32, shape),
      .value = TensorView::contiguous(input.data(), DType::float32, shape),
      .cu_seqlens_q = TensorView::contiguous(offsets.data(), DType::int32, {1}),
  };
  float none = 0;
  backward(attention, TensorView::contiguous(&none, DType::float32, {0, heads, head_dim}),
           MutableTensorView::contiguous(&none, DType::float32, {0, heads, head_dim}),
           MutableTensorView::contiguous(grad_key.data(), DType::float32, shape),
           MutableTensorView::contiguous(grad_value.data(), DType::float32, shape));
  for (const float value : grad_key) EXPECT_EQ(value, 0.0F);
  for (const float value : grad_value) EXPECT_EQ(value, 0.0F);
}

}  // namespace
}  // namespace gdpa
