// The GPUs of this machine, and the rates that their clocks and widths allow. It queries the driver and creates no
// context.
#include <array>
#include <map>

#include "gdpa/system.h"
#include "gpu/driver.h"
#include "gpu/target.h"

namespace gdpa {
namespace {

/// The multiplications and additions of a multiprocessor in each clock cycle, for dense 16-bit products with fp32 sums,
/// by compute capability. The number for tf32 is half of it.
const std::map<int, double> flops_per_clock = {{80, 2048},  {86, 1024},  {87, 2048},  {89, 1024}, {90, 4096},
                                               {100, 8192}, {103, 8192}, {120, 1024}, {121, 1024}};

int capability_of(const GpuDevice& gpu) { return 10 * gpu.compute_major + gpu.compute_minor; }

GpuDevice describe(const gpu::Driver& driver, int device) {
  const auto ask = [&](gpu::DeviceAttribute attribute) {
    int value = 0;
    driver.device_attribute(&value, attribute, device);
    return value;
  };
  using Attribute = gpu::DeviceAttribute;
  GpuDevice gpu;
  std::array<char, 256> name{};
  driver.device_name(name.data(), static_cast<int>(name.size()), device);
  std::size_t memory = 0;
  driver.device_memory(&memory, device);
  gpu.name = name.data();
  gpu.compute_major = ask(Attribute::compute_capability_major);
  gpu.compute_minor = ask(Attribute::compute_capability_minor);
  gpu.memory_bytes = static_cast<int64_t>(memory);
  gpu.multiprocessors = ask(Attribute::multiprocessors);
  gpu.clock = 1e3 * ask(Attribute::clock_kilohertz);
  constexpr double transfers_per_clock = 2, bits_per_byte = 8;
  gpu.bytes_per_second = transfers_per_clock * 1e3 * ask(Attribute::memory_clock_kilohertz) *
                         ask(Attribute::memory_bus_bits) / bits_per_byte;
  gpu.advice = gpu::why_unsupported(capability_of(gpu));
  return gpu;
}

}  // namespace

std::vector<GpuDevice> list_gpus() {
  std::vector<GpuDevice> gpus;
  if (!gpu::Driver::why_missing().empty()) return gpus;
  const gpu::Driver& driver = gpu::Driver::get();
  int count = 0;
  if (driver.device_count(&count) != gpu::success) return gpus;
  for (int device = 0; device < count; ++device) gpus.push_back(describe(driver, device));
  return gpus;
}

double peak_flops(const GpuDevice& gpu, DType dtype, bool allow_tf32) {
  double share = 0;
  if (dtype == DType::bfloat16 || dtype == DType::float16) share = 1;
  if (dtype == DType::float32) share = allow_tf32 ? 1.0 / 2 : 1.0 / 6;
  const auto found = flops_per_clock.find(capability_of(gpu));
  return found == flops_per_clock.end() ? 0 : share * found->second * gpu.multiprocessors * gpu.clock;
}

}  // namespace gdpa
