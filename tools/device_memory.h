// What the commands need of a GPU beside gdpa: memory, a stream, and events to time by. Through the CUDA driver, which
// is opened when a GPU is first used, as the library does.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace gdpa::tool {

/// Memory of a device, for as long as the object lives. Copies wait for the device.
class DeviceMemory {
 public:
  /// Throws MachineError where the device has no room.
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

  /// Launches `work` so many times with events between, then waits: the seconds that the device took for each.
  std::vector<double> time(const std::function<void()>& work, int calls) const;

 private:
  void* handle_ = nullptr;
};

}  // namespace gdpa::tool
