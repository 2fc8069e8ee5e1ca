// A score that reads a tensor of the call: a learned bias for each distance between query and key. The example takes
// one step against the gradient of the bias, and checks that the loss falls by the expected amount.
#include <gdpa/gdpa.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  constexpr int64_t tokens = 7, heads = 2, head_dim = 4, distances = 4;
  const std::vector<int32_t> offsets = {0, 3, 7};  // two sequences
  std::vector<float> items(tokens * heads * head_dim);
  for (std::size_t i = 0; i < items.size(); ++i) items[i] = std::sin(static_cast<float>(i));
  std::vector<float> table(heads * distances, 0.1f), gradient(table.size()), output(items.size());

  const auto rows = gdpa::TensorView::contiguous(items.data(), gdpa::DType::float32, {tokens, heads, head_dim});
  const auto cu = gdpa::TensorView::contiguous(offsets.data(), gdpa::DType::int32, {3});
  const gdpa::Attention attention{
      .query = rows,
      .key = rows,
      .value = rows,
      .cu_seqlens_q = cu,
      .cu_seqlens_k = cu,
      .activation = gdpa::Activation("silu(s + table[head, clamp(q_idx - kv_idx, 0, 3)])", {}, {"table"}),
      .parameters = {{"table", gdpa::TensorView::contiguous(table.data(), gdpa::DType::float32, {heads, distances})}}};
  const auto result =
      gdpa::MutableTensorView::contiguous(output.data(), gdpa::DType::float32, {tokens, heads, head_dim});

  // The loss is half the sum of the squares of O, so that O itself is the gradient of O.
  const auto loss = [&] {
    gdpa::forward(attention, result);
    double sum = 0;
    for (const float number : output) sum += 0.5 * static_cast<double>(number) * static_cast<double>(number);
    return sum;
  };
  const double before = loss();
  const auto grad_output = gdpa::TensorView::contiguous(output.data(), gdpa::DType::float32, {tokens, heads, head_dim});
  gdpa::backward(
      attention, grad_output, {}, {}, {},
      {{"table", gdpa::MutableTensorView::contiguous(gradient.data(), gdpa::DType::float32, {heads, distances})}});

  constexpr float step = 1e-3f;
  double expected = 0;
  for (std::size_t i = 0; i < table.size(); ++i) {
    expected += static_cast<double>(step * gradient[i] * gradient[i]);
    table[i] -= step * gradient[i];
  }
  const double fall = before - loss();
  std::printf("the loss %.6f falls by %.6f; the gradient predicts %.6f\n", before, fall, expected);
  return std::fabs(fall - expected) < 0.02 * expected ? 0 : 1;
}
