// See rates.h.
#include "rates.h"

#include <fmt/format.h>

#include <map>
#include <tuple>

#include "device.h"
#include "gdpa/system.h"

namespace gdpa::tool {
namespace {

Rates of_processor(DType dtype, int threads) {
  const ProcessorRates measured = measure_processor_rates(dtype, threads);
  return {measured.product_flops, measured.copy_bytes,
          fmt::format("measured now: products {:.1f} GFLOP/s, copies {:.1f} GB/s, {} thread{}",
                      measured.product_flops * 1e-9, measured.copy_bytes * 1e-9, measured.threads,
                      measured.threads == 1 ? "" : "s")};
}

Rates of_gpu(const GpuDevice& gpu, DType dtype) {
  const double flops = peak_flops(gpu, dtype);
  return {flops, gpu.bytes_per_second,
          fmt::format("the highest rates of {}: {:.0f} TFLOP/s ({} multiprocessors at {:.2f} GHz, a clock that falls "
                      "during large products), {:.2f} TB/s",
                      gpu.name, flops * 1e-12, gpu.multiprocessors, gpu.clock * 1e-9, gpu.bytes_per_second * 1e-12)};
}

}  // namespace

const Rates& rates_of(Device device, DType dtype, int threads) {
  static std::map<std::tuple<int, DType, int>, Rates> known;
  const int number = device.kind == DeviceKind::cuda ? device.index : -1;
  const auto [rates, is_new] = known.try_emplace({number, dtype, threads});
  if (is_new) rates->second = number < 0 ? of_processor(dtype, threads) : of_gpu(gpu_of(device), dtype);
  return rates->second;
}

}  // namespace gdpa::tool
