// See fake_driver.h. Device memory is host memory, and a kernel is a number.
#include "fake_driver.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace {

constexpr int success = 0, invalid_value = 1, out_of_memory = 2, no_device = 100, capture_unsupported = 900;

std::size_t launches_before_event = 0;

int number_from(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

FakeDriver made_from_environment() {
  FakeDriver driver;
  driver.version = number_from("FAKE_CUDA_VERSION", driver.version);
  driver.devices = number_from("FAKE_CUDA_DEVICES", driver.devices);
  driver.capability = number_from("FAKE_CUDA_CAPABILITY", driver.capability);
  return driver;
}

int succeed() {
  ++fake_driver().calls;
  return success;
}

template <class Handle>
int hand_out(Handle* handle) {
  static int object = 0;
  *handle = reinterpret_cast<Handle>(&object);
  return succeed();
}

int allocate(std::uint64_t* address, std::size_t bytes) {
  if (!fake_driver().has_memory) return out_of_memory;
  *address = reinterpret_cast<std::uint64_t>(std::calloc(bytes, 1));
  return succeed();
}

int release(std::uint64_t address) {
  std::free(reinterpret_cast<void*>(address));
  return succeed();
}

int copy(std::uint64_t to, std::uint64_t from, std::size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return succeed();
}

}  // namespace

extern "C" {

FakeDriver& fake_driver() {
  static FakeDriver driver = made_from_environment();
  return driver;
}

int cuInit(unsigned) { return fake_driver().devices > 0 ? success : no_device; }
// NVRTC asks the driver for tables of functions. They begin with their size; one that holds nothing else serves.
int cuGetExportTable(const void** table, const void*) {
  static const std::uint64_t size_alone = sizeof size_alone;
  *table = &size_alone;
  return succeed();
}
int cuDriverGetVersion(int* version) {
  *version = fake_driver().version;
  return succeed();
}
int cuGetErrorName(int status, const char** name) {
  *name = status == out_of_memory ? "CUDA_ERROR_OUT_OF_MEMORY"
          : status == no_device   ? "CUDA_ERROR_NO_DEVICE"
                                  : "CUDA_ERROR_OF_THE_TEST";
  return succeed();
}
int cuDeviceGetCount(int* count) {
  *count = fake_driver().devices;
  return succeed();
}
int cuDeviceGetName(char* name, int length, int) {
  std::strncpy(name, "Fake GPU", static_cast<std::size_t>(length));
  return succeed();
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{1} << 34;
  return succeed();
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  constexpr int clock = 13, multiprocessors = 16, memory_clock = 36, bus = 37, major = 75, minor = 76,
                shared_bytes = 97;
  *value = attribute == clock             ? 1'980'000
           : attribute == multiprocessors ? 132
           : attribute == memory_clock    ? 3'201'000
           : attribute == bus             ? 6144
           : attribute == shared_bytes    ? 227 * 1024
           : attribute == major           ? fake_driver().capability / 10
           : attribute == minor           ? fake_driver().capability % 10
                                          : 0;
  return succeed();
}
int cuDevicePrimaryCtxRetain(void** context, int) { return hand_out(context); }
int cuCtxPushCurrent_v2(void*) { return succeed(); }
int cuCtxPopCurrent_v2(void** context) { return hand_out(context); }
int cuCtxSetCurrent(void*) { return succeed(); }
int cuModuleLoadData(void** module, const void*) {
  ++fake_driver().loads;
  return fake_driver().load_status != success ? fake_driver().load_status : hand_out(module);
}
int cuModuleUnload(void*) {
  if (fake_driver().is_computing) fake_driver().unloads_while_computing++;
  ++fake_driver().unloads;
  return success;
}
int cuModuleGetFunction(void** kernel, void*, const char*) { return hand_out(kernel); }
int cuFuncSetAttribute(void*, int, int) { return succeed(); }
int cuLaunchKernel(void*, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned, unsigned shared_bytes,
                   void* stream, void**, void**) {
  fake_driver().launches.push_back({grid, block, shared_bytes, stream});
  fake_driver().is_computing = true;
  return succeed();
}
int cuStreamIsCapturing(void*, int* status) {
  *status = fake_driver().is_capturing ? 1 : 0;
  return succeed();
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  thread_local int of_thread = 0;
  std::swap(*mode, of_thread);
  return succeed();
}
int cuStreamCreate(void** stream, unsigned) { return hand_out(stream); }
int cuStreamDestroy_v2(void*) { return succeed(); }
int cuStreamSynchronize(void* stream) {
  if (stream != nullptr) fake_driver().is_computing = false;  // streams do not wait for the default one
  return succeed();
}
int cuCtxSynchronize() {
  if (fake_driver().captures_elsewhere) {
    ++fake_driver().ended_captures;
    return capture_unsupported;
  }
  fake_driver().is_computing = false;
  return succeed();
}
int cuEventCreate(void** event, unsigned) { return hand_out(event); }
int cuEventDestroy_v2(void*) { return succeed(); }
// All events are one event.
int cuEventRecord(void*, void*) {
  launches_before_event = fake_driver().launches.size();
  return succeed();
}
int cuEventSynchronize(void*) {
  if (launches_before_event == fake_driver().launches.size()) fake_driver().is_computing = false;
  return succeed();
}
int cuEventElapsedTime(float* milliseconds, void*, void*) {
  *milliseconds = 1;
  return succeed();
}
int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) { return allocate(address, bytes); }
int cuMemFree_v2(std::uint64_t address) { return release(address); }
int cuMemAllocAsync(std::uint64_t* address, std::size_t bytes, void*) {
  ++fake_driver().allocations;
  return allocate(address, bytes);
}
int cuMemFreeAsync(std::uint64_t address, void*) {
  --fake_driver().allocations;
  return release(address);
}
int cuMemsetD8Async(std::uint64_t address, unsigned char value, std::size_t bytes, void*) {
  ++fake_driver().fills;
  std::memset(reinterpret_cast<void*>(address), value, bytes);
  return succeed();
}
int cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes) {
  return copy(to, reinterpret_cast<std::uint64_t>(from), bytes);
}
int cuMemcpyDtoH_v2(void* to, std::uint64_t from, std::size_t bytes) {
  if (fake_driver().is_computing) {
    std::memset(to, 0xff, bytes);
    return succeed();
  }
  return copy(reinterpret_cast<std::uint64_t>(to), from, bytes);
}
int cuTensorMapEncodeTiled(void*, int, std::uint32_t rank, void*, const std::uint64_t*, const std::uint64_t* strides,
                           const std::uint32_t*, const std::uint32_t*, int, int, int, int) {
  constexpr std::uint64_t most_stride = std::uint64_t{1} << 40;
  const bool is_valid = std::all_of(strides, strides + rank - 1,
                                    [](std::uint64_t stride) { return stride % 16 == 0 && stride < most_stride; });
  return is_valid ? succeed() : invalid_value;
}

}  // extern "C"
