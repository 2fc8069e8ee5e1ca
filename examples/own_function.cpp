// A custom function: an expression with a parameter, its derivative, and pooling by two queries that the batch shares.
#include <gdpa/gdpa.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  const gdpa::Activation swish("s * sigmoid(b * s)", {{"b", 1.702}});
  std::printf("f(s)  = %s\nf'(s) = %s\n", swish.text().c_str(), swish.derivative_text().c_str());

  constexpr int64_t queries = 2;
  constexpr int64_t head_dim = 4;
  const std::vector<int32_t> offsets = {0, 3, 7};  // two histories, of 3 and 4 items
  const int64_t batch = 2;
  const std::vector<float> query(queries * head_dim, 1.0f);
  const std::vector<float> items(7 * head_dim, 0.5f);
  std::vector<float> output(static_cast<std::size_t>(batch * queries * head_dim));

  const auto keys = gdpa::TensorView::contiguous(items.data(), gdpa::DType::float32, {7, 1, head_dim});
  gdpa::forward(
      {.query = gdpa::TensorView::contiguous(query.data(), gdpa::DType::float32, {queries, 1, head_dim}),
       .key = keys,
       .value = keys,
       .cu_seqlens_k = gdpa::TensorView::contiguous(offsets.data(), gdpa::DType::int32, {3}),
       .activation = swish,
       .scale = 1.0,
       .out_scale = gdpa::OutScale::per_key()},
      gdpa::MutableTensorView::contiguous(output.data(), gdpa::DType::float32, {batch * queries, 1, head_dim}));

  // Every score is 4 * 1 * 0.5 = 2 and every value is 0.5, so the mean over the items is 0.5 * f(2) in both histories.
  const double expected = 0.5 * swish.value(2.0);
  for (float number : output) {
    if (std::fabs(number - expected) > 1e-5) {
      std::fprintf(stderr, "expected %.6f, got %.6f\n", expected, static_cast<double>(number));
      return 1;
    }
  }
  std::printf("pooled: %.6f\n", static_cast<double>(output[0]));
  return 0;
}
