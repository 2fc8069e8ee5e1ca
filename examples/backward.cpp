// Backward: computes the gradients of query, key and value, and compares one element with a central difference.
#include <gdpa/gdpa.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

constexpr int64_t tokens = 9;
constexpr int64_t heads = 2;
constexpr int64_t head_dim = 8;
using Rows = std::vector<double>;  // (tokens, heads, head_dim)

gdpa::TensorView view(const Rows& rows) {
  return gdpa::TensorView::contiguous(rows.data(), gdpa::DType::float64, {tokens, heads, head_dim});
}

gdpa::MutableTensorView view(Rows& rows) {
  return gdpa::MutableTensorView::contiguous(rows.data(), gdpa::DType::float64, {tokens, heads, head_dim});
}

Rows numbers(double phase) {
  Rows rows(tokens * heads * head_dim);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = std::sin(phase + 0.7 * static_cast<double>(i));
  return rows;
}

gdpa::Attention attention(const Rows& query, const Rows& key, const Rows& value, const std::vector<int64_t>& offsets) {
  const auto cumulative = gdpa::TensorView::contiguous(offsets.data(), gdpa::DType::int64, {3});
  return {.query = view(query),
          .key = view(key),
          .value = view(value),
          .cu_seqlens_q = cumulative,
          .cu_seqlens_k = cumulative,
          .activation = gdpa::Activation("gelu"),
          .out_scale = gdpa::OutScale::per_key()};
}

double sum_of_output(const gdpa::Attention& problem) {
  Rows output(tokens * heads * head_dim);
  gdpa::forward(problem, view(output));
  double sum = 0;
  for (double number : output) sum += number;
  return sum;
}

}  // namespace

int main() {
  const std::vector<int64_t> offsets = {0, 4, tokens};
  Rows query = numbers(0.1);
  const Rows key = numbers(0.2), value = numbers(0.3);

  // The loss is the sum of the output, so the gradient of the output is 1 everywhere.
  const Rows grad_output(query.size(), 1.0);
  Rows grad_query(query.size()), grad_key(key.size()), grad_value(value.size());
  gdpa::backward(attention(query, key, value, offsets), view(grad_output), view(grad_query), view(grad_key),
                 view(grad_value));

  constexpr std::size_t element = 21;
  constexpr double step = 1e-5;
  query[element] += step;
  const double above = sum_of_output(attention(query, key, value, offsets));
  query[element] -= 2 * step;
  const double below = sum_of_output(attention(query, key, value, offsets));
  const double expected = (above - below) / (2 * step);
  std::printf("dQ[%zu]: %.9f, by differences %.9f\n", element, grad_query[element], expected);
  return std::fabs(grad_query[element] - expected) < 1e-7 ? 0 : 1;
}
