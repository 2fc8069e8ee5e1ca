// The CUDA driver, which is opened at the first use of a GPU: a struct with the functions that gdpa calls, and error
// messages. gdpa builds without CUDA headers and loads without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gdpa::gpu {

/// The handles and enumerations of the driver's binary interface (CUDA Driver API, cuda.h).
using Context = struct ContextTag*;
using Module = struct ModuleTag*;
using KernelHandle = struct KernelTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using DevicePointer = std::uint64_t;
using Status = int;

constexpr Status success = 0;
constexpr Status out_of_memory = 2;

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

/// CUlaunchAttribute. The only attribute that gdpa sets allows a kernel to start before the previous kernel of the
/// stream has ended (programmatic dependent launch).
struct alignas(8) LaunchAttribute {
  static constexpr int programmatic_stream_serialization = 6;
  int id = programmatic_stream_serialization;
  alignas(8) int is_allowed = 1;
  char rest_of_value[60] = {};
};

/// CUlaunchConfig.
struct LaunchConfig {
  unsigned grid[3] = {1, 1, 1};
  unsigned block[3] = {1, 1, 1};
  unsigned shared_bytes = 0;
  Stream stream = nullptr;
  const LaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};

static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56, "the sizes in cuda.h");

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
  Status (*module_kernel)(KernelHandle* kernel, Module module, const char* name);
  Status (*event_create)(Event* event, unsigned flags);
  Status (*event_record)(Event event, Stream stream);
  Status (*event_synchronize)(Event event);
  Status (*copy_to_host)(void* destination, DevicePointer source, std::size_t bytes);
  Status (*kernel_set_attribute)(KernelHandle kernel, KernelAttribute attribute, int value);
  Status (*launch)(KernelHandle kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters,
                   void** extra);
  /// Null if the driver is older than CUDA 12.3. Older drivers cannot capture a dependent launch in a CUDA graph.
  Status (*launch_with_attributes)(const LaunchConfig* config, KernelHandle kernel, void** parameters, void** extra);
  Status (*stream_is_capturing)(Stream stream, int* status);
  Status (*exchange_capture_mode)(int* mode);  ///< of the calling thread; in: the new mode, out: the old mode
  Status (*fill_async)(DevicePointer destination, unsigned char value, std::size_t bytes, Stream stream);
  Status (*allocate_async)(DevicePointer* pointer, std::size_t bytes, Stream stream);
  /// Writes the 128 bytes of a tensor map. Null if the driver is older than CUDA 12.0.
  Status (*encode_tensor_map)(void* map, int type, std::uint32_t rank, void* address, const std::uint64_t* extents,
                              const std::uint64_t* strides, const std::uint32_t* box,
                              const std::uint32_t* element_strides, int interleave, int swizzle, int promotion,
                              int fill);
  Status (*free_async)(DevicePointer pointer, Stream stream);

  /// Opens and initialises libcuda.so.1 once. Throws Error (runtime) with the missing component and a remedy.
  static const Driver& get();

  /// Returns the reason why the driver is missing, or an empty string, for `gdpa doctor`, which must not throw.
  static std::string why_missing();
};

/// Returns the driver's version in the usual form, "12.8".
std::string version_of(const Driver& driver);

/// Throws Error (runtime), "<doing>: the CUDA driver answered <name>", unless status is success. Without free memory on
/// the GPU the error is Error (out_of_memory), and its message begins with "CUDA out of memory.", as PyTorch's.
void check(Status status, const char* doing);

/// Makes the primary context of a device current for a scope, and then restores the previous context.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice();
};

/// Allows the calling thread to load kernels while any thread captures a CUDA graph. In the capture mode of PyTorch, a
/// load in any thread would otherwise make the capture fail.
class RelaxedCapture {
 public:
  RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture();

 private:
  int mode_ = 2;  ///< CU_STREAM_CAPTURE_MODE_RELAXED, then the previous mode of the thread
};

}  // namespace gdpa::gpu
