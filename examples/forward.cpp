// Forward: computes causal attention with SiLU over three packed sequences of different lengths.
#include <gdpa/gdpa.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  constexpr int64_t heads = 2;
  constexpr int64_t head_dim = 16;
  const std::vector<int32_t> offsets = {0, 5, 5, 12};  // lengths 5, 0 and 7
  const int64_t tokens = offsets.back();

  // query, key and value have the shape (tokens, heads, head_dim). All elements are 1, so the result is known.
  const std::vector<float> ones(static_cast<std::size_t>(tokens * heads * head_dim), 1.0f);
  std::vector<float> output(ones.size());

  const auto rows = gdpa::TensorView::contiguous(ones.data(), gdpa::DType::float32, {tokens, heads, head_dim});
  const auto cumulative = gdpa::TensorView::contiguous(offsets.data(), gdpa::DType::int32, {4});
  try {
    gdpa::forward({.query = rows,
                   .key = rows,
                   .value = rows,
                   .cu_seqlens_q = cumulative,
                   .cu_seqlens_k = cumulative,
                   .activation = gdpa::Activation("silu"),
                   .mask = gdpa::Mask::causal()},
                  gdpa::MutableTensorView::contiguous(output.data(), gdpa::DType::float32, {tokens, heads, head_dim}));
  } catch (const gdpa::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }

  // Every score is sqrt(head_dim) = 4. The fourth query attends to four keys, so its output is 4 * silu(4).
  const double expected = 4 * gdpa::Activation("silu").value(4.0);
  const double got = output[3 * heads * head_dim];
  std::printf("row 3: %.6f, expected %.6f\n", got, expected);
  return std::fabs(got - expected) < 1e-5 * expected ? 0 : 1;
}
