// One score of 2 and a value of 3: relu(2) * 3 is 6.
#include <gdpa/gdpa.h>

#include <cstdio>

int main() {
  const float query = 1, key = 2, value = 3;
  float output = 0;
  const auto one = [](const float& number) {
    return gdpa::TensorView::contiguous(&number, gdpa::DType::float32, {1, 1, 1});
  };
  gdpa::forward(
      {.query = one(query), .key = one(key), .value = one(value), .activation = gdpa::Activation("relu"), .scale = 1.0},
      gdpa::MutableTensorView::contiguous(&output, gdpa::DType::float32, {1, 1, 1}));
  std::printf("gdpa %s: %g\n", GDPA_VERSION, static_cast<double>(output));
  return output == 6 ? 0 : 1;
}
