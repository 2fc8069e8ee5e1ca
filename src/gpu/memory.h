// The workspace of a call: the caller's memory, or memory of the stream's pool.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>

#include "gdpa/attention.h"
#include "gdpa/error.h"
#include "gpu/driver.h"

namespace gdpa::gpu {

/// Memory of the stream's pool is freed by the stream after the call's kernels.
class Memory {
 public:
  /// Throws Error (value) if the caller's memory is too small. `function` returns the size, for the messages.
  Memory(const Workspace& given, int64_t bytes, Stream stream, const char* function) : stream_(stream) {
    if (bytes == 0) return;
    if (given.data == nullptr) {
      check(Driver::get().allocate_async(&owned_, static_cast<std::size_t>(bytes), stream),
            fmt::format("allocating the workspace of backward ({})", function).c_str());
      data_ = reinterpret_cast<std::byte*>(owned_);
      return;
    }
    if (given.bytes < bytes) {
      throw Error(ErrorKind::value,
                  fmt::format("workspace: expected {} bytes, got {}; ask {}() with the gradients of the call", bytes,
                              given.bytes, function));
    }
    data_ = static_cast<std::byte*>(given.data);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    if (owned_ != 0) Driver::get().free_async(owned_, stream_);
  }

  std::byte* data() const { return data_; }

 private:
  Stream stream_;
  DevicePointer owned_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace gdpa::gpu
