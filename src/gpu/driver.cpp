// See driver.h.
#include "gpu/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <atomic>

#include "gdpa/error.h"

namespace gdpa::gpu {
namespace {

struct Opened {
  Driver driver{};
  std::string problem;  ///< the reason why the driver cannot be used, or empty
};

template <class Function>
bool find(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, symbol));
  return function != nullptr;
}

void find_launch_with_attributes(void* library, Driver& driver) {
  constexpr int first_version = 12030;
  int version = 0;
  driver.get_version(&version);
  if (version >= first_version) find(library, "cuLaunchKernelEx", driver.launch_with_attributes);
}

/// Returns the first missing symbol of the library, or null. The _v2 names are the current binary interface.
const char* fill(void* library, Driver& driver) {
  const char* missing = nullptr;
  const auto need = [&](const char* symbol, auto& function) {
    if (missing == nullptr && !find(library, symbol, function)) missing = symbol;
  };
  need("cuDriverGetVersion", driver.get_version);
  need("cuGetErrorName", driver.error_name);
  need("cuDeviceGetCount", driver.device_count);
  need("cuDeviceGetName", driver.device_name);
  need("cuDeviceGetAttribute", driver.device_attribute);
  need("cuDeviceTotalMem_v2", driver.device_memory);
  need("cuDevicePrimaryCtxRetain", driver.primary_context_retain);
  need("cuCtxPushCurrent_v2", driver.context_push);
  need("cuCtxPopCurrent_v2", driver.context_pop);
  need("cuModuleLoadData", driver.module_load);
  need("cuModuleUnload", driver.module_unload);
  need("cuEventCreate", driver.event_create);
  need("cuEventRecord", driver.event_record);
  need("cuEventSynchronize", driver.event_synchronize);
  need("cuModuleGetFunction", driver.module_kernel);
  need("cuMemcpyDtoH_v2", driver.copy_to_host);
  need("cuFuncSetAttribute", driver.kernel_set_attribute);
  need("cuLaunchKernel", driver.launch);
  need("cuStreamIsCapturing", driver.stream_is_capturing);
  need("cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode);
  need("cuMemsetD8Async", driver.fill_async);
  need("cuMemAllocAsync", driver.allocate_async);
  need("cuMemFreeAsync", driver.free_async);
  find(library, "cuTensorMapEncodeTiled", driver.encode_tensor_map);
  if (missing == nullptr) find_launch_with_attributes(library, driver);
  return missing;
}

Opened open() {
  Opened opened;
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    opened.problem =
        "the NVIDIA driver's library libcuda.so.1 was not found; install the driver (nvidia-smi then lists "
        "the GPU), or move the tensors to the CPU";
    return opened;
  }
  if (const char* missing = fill(library, opened.driver)) {
    opened.problem =
        fmt::format("libcuda.so.1 has no {}: the NVIDIA driver is older than CUDA 11.2; update it", missing);
    return opened;
  }
  Status (*initialize)(unsigned) = nullptr;
  const Status status = find(library, "cuInit", initialize) ? initialize(0) : -1;
  if (status != success) {
    const char* name = nullptr;
    opened.driver.error_name(status, &name);
    opened.problem = fmt::format("the NVIDIA driver did not start: {}; see the output of nvidia-smi",
                                 name == nullptr ? std::to_string(status) : name);
  }
  return opened;
}

const Opened& opened() {
  static const Opened result = open();
  return result;
}

constexpr int most_devices = 64;

/// Returns the primary context of a device. It is retained until the process ends, as in the CUDA runtime.
Context primary_context(int device) {
  static std::array<std::atomic<Context>, most_devices> contexts{};
  if (device < 0 || device >= most_devices) {
    throw Error(ErrorKind::value,
                fmt::format("device: expected an index below {}, got {}; correct it", most_devices, device));
  }
  auto& slot = contexts[static_cast<std::size_t>(device)];
  Context context = slot.load(std::memory_order_acquire);
  if (context == nullptr) {
    check(Driver::get().primary_context_retain(&context, device), "using the GPU");
    slot.store(context, std::memory_order_release);
  }
  return context;
}

}  // namespace

const Driver& Driver::get() {
  if (!opened().problem.empty()) throw Error(ErrorKind::runtime, "GPU: " + opened().problem);
  return opened().driver;
}

std::string Driver::why_missing() { return opened().problem; }

std::string version_of(const Driver& driver) {
  int version = 0;
  driver.get_version(&version);
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

void check(Status status, const char* doing) {
  if (status == success) return;
  const char* name = nullptr;
  Driver::get().error_name(status, &name);
  const std::string message =
      fmt::format("{}: the CUDA driver answered {}", doing, name == nullptr ? std::to_string(status) : name);
  if (status != out_of_memory) throw Error(ErrorKind::runtime, message);
  throw Error(ErrorKind::out_of_memory, "CUDA out of memory. gdpa, " + message + "; free some memory of the GPU");
}

CurrentDevice::CurrentDevice(int device) {
  check(Driver::get().context_push(primary_context(device)), "using the GPU");
}

CurrentDevice::~CurrentDevice() {
  Context previous = nullptr;
  opened().driver.context_pop(&previous);
}

RelaxedCapture::RelaxedCapture() {
  check(Driver::get().exchange_capture_mode(&mode_), "loading kernels during a capture");
}

RelaxedCapture::~RelaxedCapture() { opened().driver.exchange_capture_mode(&mode_); }

}  // namespace gdpa::gpu
