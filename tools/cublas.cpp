// Declares the required functions of cuBLAS, so that the build needs no CUDA header.
#include "cublas.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <string>
#include <vector>

#include "command.h"
#include "gdpa/system.h"
#include "measure.h"
#include "workload.h"

namespace gdpa::tool {
namespace {

constexpr int64_t product_size = 8192;  // as in the benchmark of the Python package

struct Cublas {
  int (*create)(void**);
  int (*destroy)(void*);
  int (*version)(void*, int*);
  int (*set_stream)(void*, void*);
  int (*product)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int, int, const void*,
                 void*, int, int, int, int);
};

/// Returns the files to try: next to NVRTC, where the toolkit and PyTorch's package for CUDA 13 have it, in PyTorch's
/// package of cuBLAS for CUDA 12, and where the loader searches.
std::vector<std::string> files() {
  std::vector<std::string> found;
  for (const char* soname : {"libcublas.so.13", "libcublas.so.12"}) {
    for (const Component& component : inspect_system().components) {
      if (component.name != "NVRTC" || !component.found) continue;
      const std::filesystem::path folder = std::filesystem::path(component.location).parent_path();
      found.push_back((folder / soname).string());
      found.push_back((folder.parent_path().parent_path() / "cublas" / "lib" / soname).string());
    }
    found.emplace_back(soname);
  }
  return found;
}

/// Returns the library, or null with the reason in `problem`.
void* open_library(std::string& problem) {
  const std::vector<std::string> tried = files();
  for (const std::string& file : tried) {
    if (void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  problem = fmt::format(
      "cuBLAS was not found: install the CUDA toolkit or PyTorch with CUDA, or add the folder of libcublas.so to "
      "LD_LIBRARY_PATH. Tried: {}",
      fmt::join(tried, ", "));
  return nullptr;
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

/// The number of a type in cudaDataType.
int number_of(DType dtype) {
  constexpr int real_32 = 0, real_16 = 2, real_b16 = 14;
  return dtype == DType::float32 ? real_32 : dtype == DType::float16 ? real_16 : real_b16;
}

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

ProductRate measured(const Cublas& cublas, void* handle, Device device, DType dtype, double seconds) {
  Tensor left(dtype, {product_size, product_size}, device, true),
      right(dtype, {product_size, product_size}, device, true),
      result(dtype, {product_size, product_size}, device, true);
  left.fill_with_normal_numbers(1);
  right.fill_with_normal_numbers(2);
  const DeviceStream stream(device.index);
  ProductRate rate;
  int version = 0, status = cublas.set_stream(handle, stream.handle());
  cublas.version(handle, &version);
  rate.version = version_text(version);
  const auto multiply = [&] {
    constexpr int no_transpose = 0, compute_in_float32 = 68, default_algorithm = -1, size = product_size;
    const float one = 1, zero = 0;
    const int type = number_of(dtype);
    const int answer = cublas.product(handle, no_transpose, no_transpose, size, size, size, &one, left.view().data,
                                      type, size, right.view().data, type, size, &zero, result.view().data, type, size,
                                      compute_in_float32, default_algorithm);
    if (answer != 0) status = answer;
  };
  multiply();  // the first call loads the kernel
  stream.wait();
  const double time = median(stream.time_for(multiply, seconds));
  if (status != 0) {
    rate.problem = fmt::format("cuBLAS {} answered status {}", rate.version, status);
    return rate;
  }
  constexpr double size = product_size;
  rate.flops = 2 * size * size * size / time;
  return rate;
}

}  // namespace

ProductRate cublas_rate(Device device, DType dtype, double seconds) {
  std::string problem;
  void* const library = open_library(problem);
  if (library == nullptr) return {0, "", problem};
  Cublas cublas{};
  const bool is_complete =
      find(library, "cublasCreate_v2", cublas.create) && find(library, "cublasDestroy_v2", cublas.destroy) &&
      find(library, "cublasGetVersion_v2", cublas.version) && find(library, "cublasSetStream_v2", cublas.set_stream) &&
      find(library, "cublasGemmEx", cublas.product);
  if (!is_complete) return {0, "", "libcublas lacks a function: install cuBLAS 12 or later"};
  const DeviceStream makes_the_device_current(device.index);
  void* handle = nullptr;
  if (const int status = cublas.create(&handle); status != 0) {
    return {0, "", fmt::format("cuBLAS cannot start: status {}; its version may not fit the driver", status)};
  }
  ProductRate rate;
  try {
    rate = measured(cublas, handle, device, dtype, seconds);
  } catch (const OutOfMemory& error) {
    rate.problem = error.what();
  }
  cublas.destroy(handle);
  return rate;
}

}  // namespace gdpa::tool
