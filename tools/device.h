// The one place that decides on which device a command computes.
#pragma once

#include <string>

#include "gdpa/system.h"
#include "gdpa/tensor.h"

namespace CLI {
class App;
}

namespace gdpa::tool {

void add_device_option(CLI::App& parser, std::string& device);

/// What a command is about to compute, as far as a GPU may refuse it.
struct DeviceNeeds {
  DType dtype = DType::float32;
  int64_t head_dim = 8;
  int64_t head_dim_v = 8;
};

/// "cpu", "cuda" or "cuda:1", where there must be a GPU that gdpa runs on; or empty: the first such GPU where gdpa has
/// kernels for what is needed, else the CPU. Throws UsageError or MachineError.
Device choose_device(const std::string& asked, const DeviceNeeds& needs);

/// "cuda:0, NVIDIA H200", or the processor with the threads that work.
std::string describe(Device device, int threads);

/// The GPU behind a device.
GpuDevice gpu_of(Device device);

}  // namespace gdpa::tool
