// The workspace of a call: the caller's memory, or memory of the stream's pool.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gdpa/attention.h"
#include "gpu/driver.h"

namespace gdpa::gpu {

/// Memory of the stream's pool is freed by the stream after the call's kernels.
class Memory {
 public:
  /// Throws Error (value) if the caller's memory is too small. `function` returns the size, for the messages.
  Memory(const Workspace& given, int64_t bytes, Stream stream, const char* function);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  DevicePointer address() const { return address_; }
  void* at(int64_t offset) const { return reinterpret_cast<void*>(address_ + static_cast<DevicePointer>(offset)); }

 private:
  Stream stream_;
  DevicePointer owned_ = 0;
  DevicePointer address_ = 0;
};

}  // namespace gdpa::gpu
