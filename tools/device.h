// The choice of the device of a command.
#pragma once

#include <string>

#include "gdpa/system.h"
#include "gdpa/tensor.h"

namespace CLI {
class App;
}

namespace gdpa::tool {

void add_device_option(CLI::App& parser, std::string& device);

/// The properties of a computation that a GPU may refuse.
struct DeviceNeeds {
  DType dtype = DType::float32;
  int64_t head_dim = 8;
  int64_t head_dim_v = 8;
};

/// Returns the device of "cpu", "cuda" or "cuda:1". A named GPU must exist, and gdpa must support it. For an empty
/// text, returns the first supported GPU if gdpa has kernels for the computation, otherwise the CPU. Throws UsageError
/// or MachineError.
Device choose_device(const std::string& asked, const DeviceNeeds& needs);

/// Returns "cuda:0, NVIDIA H200", or the processor with the number of threads.
std::string describe(Device device, int threads);

/// Returns the GPU of a device.
GpuDevice gpu_of(Device device);

}  // namespace gdpa::tool
