// Declares the required functions of the CUDA driver, so that the build needs no CUDA header.
#include "device_memory.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "command.h"

namespace gdpa::tool {
namespace {

using Address = std::uint64_t;

constexpr int out_of_memory = 2;  // CUDA_ERROR_OUT_OF_MEMORY

struct Driver {
  int (*initialize)(unsigned);
  int (*error_name)(int, const char**);
  int (*retain_context)(void**, int);
  int (*set_context)(void*);
  int (*allocate)(Address*, std::size_t);
  int (*release)(Address);
  int (*upload)(Address, const void*, std::size_t);
  int (*download)(void*, Address, std::size_t);
  int (*create_stream)(void**, unsigned);
  int (*destroy_stream)(void*);
  int (*wait_for_stream)(void*);
  int (*wait_for_all)();
  int (*create_event)(void**, unsigned);
  int (*destroy_event)(void*);
  int (*record_event)(void*, void*);
  int (*elapsed)(float*, void*, void*);
};

const Driver& driver() {
  static const Driver opened = [] {
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
      throw MachineError("expected the NVIDIA driver's libcuda.so.1, found none; see gdpa doctor");
    const auto find = [library](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      if (function == nullptr) {
        throw MachineError(fmt::format("libcuda.so.1 has no {}: update the NVIDIA driver; see gdpa doctor", name));
      }
    };
    Driver found{};
    find("cuInit", found.initialize);
    find("cuGetErrorName", found.error_name);
    find("cuDevicePrimaryCtxRetain", found.retain_context);
    find("cuCtxSetCurrent", found.set_context);
    find("cuMemAlloc_v2", found.allocate);
    find("cuMemFree_v2", found.release);
    find("cuMemcpyHtoD_v2", found.upload);
    find("cuMemcpyDtoH_v2", found.download);
    find("cuStreamCreate", found.create_stream);
    find("cuStreamDestroy_v2", found.destroy_stream);
    find("cuStreamSynchronize", found.wait_for_stream);
    find("cuCtxSynchronize", found.wait_for_all);
    find("cuEventCreate", found.create_event);
    find("cuEventDestroy_v2", found.destroy_event);
    find("cuEventRecord", found.record_event);
    find("cuEventElapsedTime", found.elapsed);
    return found;
  }();
  return opened;
}

void check(int status, const std::string& doing) {
  if (status == 0) return;
  const char* name = nullptr;
  driver().error_name(status, &name);
  throw MachineError(fmt::format("{}: the CUDA driver answered {}", doing, name == nullptr ? "an error" : name));
}

/// Makes the device current in this thread.
void use(int device) {
  void* context = nullptr;
  check(driver().initialize(0), "starting the GPU");
  check(driver().retain_context(&context, device), "starting the GPU");
  check(driver().set_context(context), "starting the GPU");
}

Address address_of(void* data) { return reinterpret_cast<Address>(data); }

}  // namespace

DeviceMemory::DeviceMemory(int device, std::size_t bytes) : bytes_(bytes) {
  use(device);
  if (bytes == 0) return;
  Address address = 0;
  const int status = driver().allocate(&address, bytes);
  if (status == out_of_memory) {
    throw OutOfMemory(fmt::format(
        "an operand of {:.1f} GiB does not fit into the memory of the GPU: free memory that other programs use (see "
        "nvidia-smi), or take a smaller --batch, --scale-batch or --max-length",
        static_cast<double>(bytes) / (1 << 30)));
  }
  check(status, "allocating memory of the GPU");
  data_ = reinterpret_cast<void*>(address);
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) driver().release(address_of(data_));
}

void DeviceMemory::upload(const void* from) {
  if (bytes_ == 0) return;
  check(driver().upload(address_of(data_), from, bytes_), "copying to the GPU");
  // The upload returns when it has read the source. A non-blocking stream could start before the data has arrived.
  check(driver().wait_for_stream(nullptr), "copying to the GPU");
}

void DeviceMemory::download(void* to) const {
  if (bytes_ == 0) return;
  // The copy does not wait for non-blocking streams, which may still compute the data.
  check(driver().wait_for_all(), "waiting for the GPU");
  check(driver().download(to, address_of(data_), bytes_), "copying from the GPU");
}

DeviceStream::DeviceStream(int device) {
  constexpr unsigned non_blocking = 1;
  use(device);
  check(driver().create_stream(&handle_, non_blocking), "making a stream");
}

DeviceStream::~DeviceStream() { driver().destroy_stream(handle_); }

void DeviceStream::wait() const { check(driver().wait_for_stream(handle_), "waiting for the GPU"); }

std::vector<double> DeviceStream::time(const std::function<void()>& work, int calls) const {
  std::vector<void*> events(static_cast<std::size_t>(calls) + 1);
  for (void*& event : events) check(driver().create_event(&event, 0), "making an event");
  check(driver().record_event(events[0], handle_), "recording an event");
  for (int call = 1; call <= calls; ++call) {
    work();
    check(driver().record_event(events[static_cast<std::size_t>(call)], handle_), "recording an event");
  }
  wait();
  std::vector<double> seconds;
  for (std::size_t i = 1; i < events.size(); ++i) {
    float milliseconds = 0;
    check(driver().elapsed(&milliseconds, events[i - 1], events[i]), "reading an event");
    seconds.push_back(1e-3 * static_cast<double>(milliseconds));
  }
  for (void* event : events) driver().destroy_event(event);
  return seconds;
}

std::vector<double> DeviceStream::time_for(const std::function<void()>& work, double seconds) const {
  constexpr int calls_at_a_time = 8;  // queued in groups, so that the device does not wait for the host
  std::vector<double> times = time(work, 1);
  for (double total = times.front(); total < seconds;) {
    for (const double call : time(work, calls_at_a_time)) {
      times.push_back(call);
      total += call;
    }
  }
  return times;
}

}  // namespace gdpa::tool
