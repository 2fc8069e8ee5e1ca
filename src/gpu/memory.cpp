// See memory.h.
#include "gpu/memory.h"

#include <fmt/format.h>

#include "gdpa/error.h"

namespace gdpa::gpu {

Memory::Memory(const Workspace& given, int64_t bytes, Stream stream, const char* function) : stream_(stream) {
  if (bytes == 0) return;
  if (given.data == nullptr) {
    check(Driver::get().allocate_async(&owned_, static_cast<std::size_t>(bytes), stream),
          fmt::format("allocating the workspace of backward ({})", function).c_str());
    address_ = owned_;
    return;
  }
  if (given.bytes < bytes) {
    throw Error(ErrorKind::value,
                fmt::format("workspace: expected {} bytes, got {}; ask {}() with the gradients of the call", bytes,
                            given.bytes, function));
  }
  address_ = reinterpret_cast<DevicePointer>(given.data);
}

Memory::~Memory() {
  if (owned_ != 0) Driver::get().free_async(owned_, stream_);
}

}  // namespace gdpa::gpu
