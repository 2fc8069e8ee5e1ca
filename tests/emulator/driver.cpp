// The replacement of the CUDA driver (libcuda.so.1). Its device memory is host memory, and its only GPU is the
// emulator, which runs a kernel at its launch. GDPA_EMULATED_SEED varies the order of events.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "gpu/driver.h"
#include "image.h"
#include "machine.h"
#include "tensor_map.h"

namespace {

using namespace gdpa::emulator;

constexpr int success = 0, invalid_value = 1, out_of_memory = 2, launch_failed = 719;

GlobalMemory& memory() {
  static GlobalMemory all;
  return all;
}

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::uint64_t seed() { return number_from("GDPA_EMULATED_SEED", 1); }

/// The default is few, so that CTAs have several tiles each.
unsigned multiprocessors() { return static_cast<unsigned>(number_from("GDPA_EMULATED_MULTIPROCESSORS", 3)); }

template <class Handle>
int hand_out(Handle* handle) {
  static int object = 0;
  *handle = reinterpret_cast<Handle>(&object);
  return success;
}

int allocate(std::uint64_t* address, std::size_t bytes) {
  constexpr std::size_t alignment = 256, most = std::size_t{1} << 32;
  if (bytes > most) return out_of_memory;
  void* const block = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (block == nullptr) return out_of_memory;
  std::memset(block, 0xff, bytes);  // memory is NaN before the first write
  *address = reinterpret_cast<std::uint64_t>(block);
  memory().add(*address, bytes);
  return success;
}

int release(std::uint64_t address) {
  memory().remove(address);
  std::free(reinterpret_cast<void*>(address));
  return success;
}

int copy(std::uint64_t to, std::uint64_t from, std::size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return success;
}

int report(const std::exception& error) {
  std::fprintf(stderr, "emulator: %s\n", error.what());
  return launch_failed;
}

int launch(const Launch& launch) {
  static std::uint64_t launches = 0;
  try {
    Machine machine(memory(), multiprocessors(), seed() * 1'000'003 + launches++);
    machine.run(launch);
    return success;
  } catch (const std::exception& error) {
    return report(error);
  }
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return success; }
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return success;
}
int cuGetErrorName(int status, const char** name) {
  *name = status == out_of_memory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_THE_EMULATOR";
  return success;
}
// NVRTC asks the driver for tables of functions. They begin with their size; one that holds nothing else serves.
int cuGetExportTable(const void** table, const void*) {
  static const std::uint64_t size_alone = sizeof size_alone;
  *table = &size_alone;
  return success;
}
int cuDeviceGetCount(int* count) {
  *count = 1;
  return success;
}
int cuDeviceGetName(char* name, int length, int) {
  std::strncpy(name, "emulated GPU", static_cast<std::size_t>(length));
  return success;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = std::size_t{1} << 32;
  return success;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  // The numbers are from cuda.h. All other attributes are 0.
  switch (attribute) {
    case 13:  // clock, kHz
      *value = 1'980'000;
      break;
    case 16:  // multiprocessors
      *value = static_cast<int>(multiprocessors());
      break;
    case 36:  // clock of the memory, kHz
      *value = 3'201'000;
      break;
    case 37:  // width of the memory, bits
      *value = 6144;
      break;
    case 75:  // compute capability, first number; the second is 0
      *value = 9;
      break;
    case 97:  // shared memory that a CTA may ask for
      *value = 227 * 1024;
      break;
    default:
      *value = 0;
  }
  return success;
}
int cuDevicePrimaryCtxRetain(void** context, int) { return hand_out(context); }
int cuCtxSetCurrent(void*) { return success; }
int cuCtxPushCurrent_v2(void*) { return success; }
int cuCtxPopCurrent_v2(void** context) { return hand_out(context); }
int cuModuleLoadData(void** module, const void* image) {
  try {
    auto* const loaded = new Module(ptx_of(image));  // until cuModuleUnload
    for (const std::vector<std::byte>& variable : loaded->variables()) {
      memory().add(reinterpret_cast<std::uint64_t>(variable.data()), variable.size());
    }
    *module = loaded;
    return success;
  } catch (const std::exception& error) {
    return report(error);
  }
}
int cuModuleUnload(void* module) {
  const auto* const loaded = static_cast<Module*>(module);
  for (const std::vector<std::byte>& variable : loaded->variables()) {
    memory().remove(reinterpret_cast<std::uint64_t>(variable.data()));
  }
  delete loaded;
  return success;
}
int cuModuleGetFunction(void** kernel, void* module, const char* name) {
  try {
    *kernel = const_cast<Kernel*>(&static_cast<Module*>(module)->kernel(name));
    return success;
  } catch (const std::exception& error) {
    return report(error);
  }
}
int cuFuncSetAttribute(void*, int, int) { return success; }
int cuLaunchKernel(void* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared_bytes, void*, void** parameters, void**) {
  if (grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1) return invalid_value;
  return launch({static_cast<const Kernel*>(kernel), grid_x, block_x, shared_bytes, parameters});
}
int cuLaunchKernelEx(const gdpa::gpu::LaunchConfig* config, void* kernel, void** parameters, void**) {
  using gdpa::gpu::LaunchAttribute;
  const auto is_flat = [](const unsigned(&extents)[3]) { return extents[1] == 1 && extents[2] == 1; };
  if (!is_flat(config->grid) || !is_flat(config->block) || config->attribute_count != 1) return invalid_value;
  const LaunchAttribute& attribute = *config->attributes;
  if (attribute.id != LaunchAttribute::programmatic_stream_serialization) return invalid_value;
  return launch({static_cast<const Kernel*>(kernel), config->grid[0], config->block[0], config->shared_bytes,
                 parameters, attribute.is_allowed != 0});
}
int cuStreamIsCapturing(void*, int* status) {
  *status = 0;
  return success;
}
int cuThreadExchangeStreamCaptureMode(int*) { return success; }
int cuStreamCreate(void** stream, unsigned) { return hand_out(stream); }
int cuStreamDestroy_v2(void*) { return success; }
int cuStreamSynchronize(void*) { return success; }
int cuCtxSynchronize() { return success; }
// Time is not emulated: each launch takes a millisecond.
int cuEventCreate(void** event, unsigned) { return hand_out(event); }
int cuEventDestroy_v2(void*) { return success; }
int cuEventRecord(void*, void*) { return success; }
int cuEventSynchronize(void*) { return success; }
int cuEventElapsedTime(float* milliseconds, void*, void*) {
  *milliseconds = 1;
  return success;
}
int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) { return allocate(address, bytes); }
int cuMemFree_v2(std::uint64_t address) { return release(address); }
int cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes) {
  return copy(to, reinterpret_cast<std::uint64_t>(from), bytes);
}
int cuMemAllocAsync(std::uint64_t* address, std::size_t bytes, void*) { return allocate(address, bytes); }
int cuMemFreeAsync(std::uint64_t address, void*) { return release(address); }
int cuMemsetD8Async(std::uint64_t address, unsigned char value, std::size_t bytes, void*) {
  std::memset(reinterpret_cast<void*>(address), value, bytes);
  return success;
}
int cuMemcpyDtoH_v2(void* to, std::uint64_t from, std::size_t bytes) {
  return copy(reinterpret_cast<std::uint64_t>(to), from, bytes);
}
int cuMemcpyHtoDAsync_v2(std::uint64_t to, const void* from, std::size_t bytes, void*) {
  return copy(to, reinterpret_cast<std::uint64_t>(from), bytes);
}
int cuMemcpyDtoHAsync_v2(void* to, std::uint64_t from, std::size_t bytes, void*) {
  return copy(reinterpret_cast<std::uint64_t>(to), from, bytes);
}
int cuTensorMapEncodeTiled(void* map, int type, std::uint32_t rank, void* address, const std::uint64_t* extents,
                           const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t* element_strides,
                           int interleave, int swizzle, int /*promotion*/, int fill) {
  if (rank != 4 || interleave != 0 || fill != 0 || reinterpret_cast<std::uint64_t>(address) % 16 != 0)
    return invalid_value;
  TensorMap result{};
  result.seal = TensorMap::sealed;
  result.address = reinterpret_cast<std::uint64_t>(address);
  for (std::size_t i = 0; i < 4; ++i) {
    if (extents[i] == 0 || extents[i] > std::uint64_t{1} << 32 || box[i] == 0 || box[i] > 256 ||
        element_strides[i] != 1) {
      return invalid_value;
    }
    result.extents[i] = extents[i];
    result.box[i] = box[i];
    if (i == 3) break;
    if (strides[i] % 16 != 0 || strides[i] >= std::uint64_t{1} << 40) return invalid_value;
    result.strides[i] = strides[i];
  }
  result.type = static_cast<std::uint16_t>(type);
  result.element_bytes = type == map_type_float32 ? 4 : 2;
  result.swizzle_bytes = static_cast<std::uint16_t>(swizzle == 0 ? 0 : 16 << swizzle);
  if (swizzle != 0 && box[0] * result.element_bytes > result.swizzle_bytes) return invalid_value;
  std::memset(map, 0, 128);
  std::memcpy(map, &result, sizeof result);
  return success;
}

}  // extern "C"
