// The GPU functions that the commands need in addition to gdpa: memory, a stream, and events for timing. They use the
// CUDA driver, which is opened when a GPU is first used, like in the library.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace gdpa::tool {

/// Memory of a device. The destructor frees it. Copies wait for the device.
class DeviceMemory {
 public:
  /// Throws OutOfMemory if the device has too little memory.
  DeviceMemory(int device, std::size_t bytes);
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory();

  void* data() const { return data_; }
  void upload(const void* from);
  void download(void* to) const;

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

/// A stream of a device.
class DeviceStream {
 public:
  explicit DeviceStream(int device);
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;
  ~DeviceStream();

  void* handle() const { return handle_; }
  void wait() const;

  /// Launches `work` `calls` times with events in between, and waits. Returns the device seconds of each launch.
  std::vector<double> time(const std::function<void()>& work, int calls) const;

  /// Launches `work` for at least `seconds` of the device and at least once. Returns the device seconds of each launch.
  std::vector<double> time_for(const std::function<void()>& work, double seconds) const;

 private:
  void* handle_ = nullptr;
};

}  // namespace gdpa::tool
