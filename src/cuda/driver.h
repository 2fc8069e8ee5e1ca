// The CUDA driver, opened when the first GPU tensor comes: one struct of the functions that gdpa calls, and errors in
// words. No CUDA header is needed to build gdpa, and no GPU to load it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gdpa::cuda {

/// The driver's handles and enumerations, as its binary interface has them (CUDA Driver API, cuda.h).
using Context = struct ContextTag*;
using Module = struct ModuleTag*;
using Kernel = struct KernelTag*;
using Stream = struct StreamTag*;
using DevicePointer = std::uint64_t;
using Status = int;

constexpr Status success = 0;

enum class DeviceAttribute : int {
  multiprocessors = 16,
  compute_capability_major = 75,
  compute_capability_minor = 76,
  shared_memory_per_block_optin = 97,
  clock_kilohertz = 13,
  memory_clock_kilohertz = 36,
  memory_bus_bits = 37,
};

enum class KernelAttribute : int {
  max_dynamic_shared_bytes = 8,
};

struct Driver {
  Status (*get_version)(int* version);
  Status (*error_name)(Status status, const char** name);
  Status (*device_count)(int* count);
  Status (*device_name)(char* name, int length, int device);
  Status (*device_attribute)(int* value, DeviceAttribute attribute, int device);
  Status (*device_memory)(std::size_t* bytes, int device);
  Status (*primary_context_retain)(Context* context, int device);
  Status (*context_push)(Context context);
  Status (*context_pop)(Context* context);
  Status (*module_load)(Module* module, const void* image);
  Status (*module_unload)(Module module);
  Status (*module_kernel)(Kernel* kernel, Module module, const char* name);
  Status (*context_synchronize)();
  Status (*copy_to_host)(void* destination, DevicePointer source, std::size_t bytes);
  Status (*kernel_set_attribute)(Kernel kernel, KernelAttribute attribute, int value);
  Status (*launch)(Kernel kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters, void** extra);
  Status (*stream_is_capturing)(Stream stream, int* status);
  Status (*exchange_capture_mode)(int* mode);  ///< of the calling thread; in: the new mode, out: the old one
  Status (*fill_async)(DevicePointer destination, unsigned char value, std::size_t bytes, Stream stream);
  Status (*allocate_async)(DevicePointer* pointer, std::size_t bytes, Stream stream);
  /// Writes the 128 bytes of a tensor map. Null where the driver is older than CUDA 12.0.
  Status (*encode_tensor_map)(void* map, int type, std::uint32_t rank, void* address, const std::uint64_t* extents,
                              const std::uint64_t* strides, const std::uint32_t* box,
                              const std::uint32_t* element_strides, int interleave, int swizzle, int promotion,
                              int fill);
  Status (*free_async)(DevicePointer pointer, Stream stream);

  /// Opens libcuda.so.1 and initialises it, once. Throws Error (runtime) that says what is missing and what to do.
  static const Driver& get();

  /// Why there is no driver, or an empty string: for `gdpa doctor`, which must not throw.
  static std::string why_missing();
};

/// The driver's version as people write it: "12.8".
std::string version_of(const Driver& driver);

/// Throws Error (runtime), "<doing>: the CUDA driver answered <name>", unless status is success.
void check(Status status, const char* doing);

/// Makes the primary context of a device current for a scope, and restores what was current before.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice();
};

/// Lets the calling thread load kernels while any thread captures a CUDA graph. PyTorch's captures would otherwise
/// fail, since their mode makes every thread's loading an error of the capture.
class RelaxedCapture {
 public:
  RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture();

 private:
  int mode_ = 2;  ///< CU_STREAM_CAPTURE_MODE_RELAXED, then the thread's own mode
};

}  // namespace gdpa::cuda
