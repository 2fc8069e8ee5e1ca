// See device.h.
#include "device.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <optional>

#include "command.h"

namespace gdpa::tool {
namespace {

/// The same rule as in src/api/checks.cpp, which enforces it. Here it only selects the default device.
bool has_kernels(const DeviceNeeds& needs) {
  constexpr int64_t step = 8, most = 256;
  const auto fits = [](int64_t head_dim) { return head_dim % step == 0 && head_dim <= most; };
  return needs.dtype != DType::float64 && fits(needs.head_dim) && fits(needs.head_dim_v);
}

std::optional<int> index_in(const std::string& text) {
  const std::string prefix = "cuda:";
  int index = 0;
  if (text == "cuda") return index;
  if (text.rfind(prefix, 0) != 0) return std::nullopt;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + prefix.size(), end, index);
  return error == std::errc() && stop == end && index >= 0 ? std::optional(index) : std::nullopt;
}

}  // namespace

void add_device_option(CLI::App& parser, std::string& device) {
  parser
      .add_option("--device", device,
                  "cpu, cuda or cuda:N; default: the first supported GPU if gdpa has kernels for the type")
      ->group("Device");
}

Device choose_device(const std::string& asked, const DeviceNeeds& needs) {
  if (asked == "cpu") return {};
  if (asked.empty()) {
    const std::vector<GpuDevice> gpus = list_gpus();
    const auto usable = std::find_if(gpus.begin(), gpus.end(), [](const GpuDevice& gpu) { return gpu.advice.empty(); });
    if (usable == gpus.end() || !has_kernels(needs)) return {};
    return {DeviceKind::cuda, static_cast<int>(usable - gpus.begin())};
  }
  const std::optional<int> index = index_in(asked);
  if (!index) throw UsageError(fmt::format("--device: expected cpu, cuda or cuda:N; got '{}'", asked));
  const Device device{DeviceKind::cuda, *index};
  const std::string advice = gpu_of(device).advice;
  if (!advice.empty()) throw MachineError(fmt::format("--device {}: {}", asked, advice));
  return device;
}

GpuDevice gpu_of(Device device) {
  const std::vector<GpuDevice> gpus = list_gpus();
  if (device.index >= static_cast<int>(gpus.size())) {
    throw MachineError(
        fmt::format("--device cuda:{}: expected the number of a GPU, the driver has {}; see gdpa doctor, or use "
                    "--device cpu",
                    device.index, gpus.size()));
  }
  return gpus[static_cast<std::size_t>(device.index)];
}

std::string describe(Device device, int threads) {
  if (device.kind == DeviceKind::cuda) return fmt::format("cuda:{}, {}", device.index, gpu_of(device).name);
  const System system = inspect_system();
  const int working = threads > 0 ? threads : system.threads;
  return fmt::format("{}, {} thread{}", system.processor, working, working == 1 ? "" : "s");
}

}  // namespace gdpa::tool
