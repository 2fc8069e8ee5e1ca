// GPU: calls gdpa with device pointers and a stream, without PyTorch and without CUDA headers. The program compares the
// first row with the definition in fp64. Without a GPU it prints a note and succeeds.
#include <gdpa/gdpa.h>
#include <gdpa/system.h>

#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

/// The functions of the CUDA driver that this program needs. A program with cuda.h can include it instead.
struct Driver {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);

  template <class... Arguments>
  void call(const char* name, Arguments... arguments) const {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
    const int status = function == nullptr ? -1 : function(arguments...);
    if (status == 0) return;
    std::fprintf(stderr, "%s: the CUDA driver answered %d\n", name, status);
    std::exit(1);
  }
};

std::vector<float> numbers(std::size_t count, double phase) {
  std::vector<float> result(count);
  for (std::size_t i = 0; i < count; ++i)
    result[i] = static_cast<float>(std::sin(phase + 0.7 * static_cast<double>(i)));
  return result;
}

}  // namespace

int main() {
  if (gdpa::list_gpus().empty()) {
    std::printf("this machine has no supported GPU; gdpa doctor prints the reason\n");
    return 0;
  }
  const Driver driver;
  void* context = nullptr;
  void* stream = nullptr;
  driver.call("cuInit", 0u);
  driver.call("cuDevicePrimaryCtxRetain", &context, 0);
  driver.call("cuCtxSetCurrent", context);
  driver.call("cuStreamCreate", &stream, 0u);  // waits for the copies below, which may outlast their calls

  // query, key and value hold two packed sequences of 5 and 7 rows, with the shape (tokens, heads, head_dim).
  constexpr int64_t tokens = 12, heads = 2, head_dim = 16;
  constexpr std::size_t count = tokens * heads * head_dim, bytes = count * sizeof(float);
  const std::vector<float> query = numbers(count, 0.1), key = numbers(count, 0.2), value = numbers(count, 0.3);
  const std::vector<int32_t> offsets = {0, 5, tokens};

  const auto upload = [&driver](const void* from, std::size_t size) {
    std::uint64_t address = 0;
    driver.call("cuMemAlloc_v2", &address, size);
    driver.call("cuMemcpyHtoD_v2", address, from, size);
    return reinterpret_cast<void*>(address);
  };
  constexpr gdpa::Device gpu{gdpa::DeviceKind::cuda, 0};
  const auto rows = [&](const std::vector<float>& from) {
    return gdpa::TensorView::contiguous(upload(from.data(), bytes), gdpa::DType::float32, {tokens, heads, head_dim},
                                        gpu);
  };
  const auto cumulative =
      gdpa::TensorView::contiguous(upload(offsets.data(), 3 * sizeof(int32_t)), gdpa::DType::int32, {3}, gpu);
  std::vector<float> output(count);
  void* const result = upload(output.data(), bytes);

  try {
    // The first call of a function compiles its kernel for one or two seconds. gdpa::compile compiles it ahead.
    gdpa::forward({.query = rows(query),
                   .key = rows(key),
                   .value = rows(value),
                   .cu_seqlens_q = cumulative,
                   .cu_seqlens_k = cumulative,
                   .activation = gdpa::Activation("silu"),
                   .stream = stream},
                  gdpa::MutableTensorView::contiguous(result, gdpa::DType::float32, {tokens, heads, head_dim}, gpu));
  } catch (const gdpa::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  driver.call("cuStreamSynchronize", stream);
  driver.call("cuMemcpyDtoH_v2", static_cast<void*>(output.data()), reinterpret_cast<std::uint64_t>(result), bytes);

  // The definition for the first row of the first head: the sum of f(scale q k) v over the 5 keys of its sequence.
  const gdpa::Activation silu("silu");
  double worst = 0;
  for (std::size_t column = 0; column < head_dim; ++column) {
    double expected = 0;
    for (std::size_t j = 0; j < 5; ++j) {
      const std::size_t row = j * heads * head_dim;
      double score = 0;
      for (std::size_t i = 0; i < head_dim; ++i)
        score += static_cast<double>(query[i]) * static_cast<double>(key[row + i]);
      expected += silu.value(score / std::sqrt(16.0)) * static_cast<double>(value[row + column]);
    }
    worst = std::fmax(worst, std::fabs(static_cast<double>(output[column]) - expected));
  }
  std::printf("%s: the first row is right to %.1e\n", gdpa::list_gpus()[0].name.c_str(), worst);
  return worst < 1e-5 ? 0 : 1;
}
