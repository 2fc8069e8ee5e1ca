// The GPU of the C++ tests: a device check, a stream, and memory with guards. It needs no CUDA header and no PyTorch.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "gdpa/plan.h"
#include "gpu/driver.h"

namespace gdpa::test {

/// Returns the reason why no GPU is available, or an empty string.
inline std::string why_no_gpu() {
  const std::string missing = gpu::Driver::why_missing();
  if (!missing.empty()) return "needs a GPU: " + missing;
  int count = 0;
  gpu::check(gpu::Driver::get().device_count(&count), "counting the GPUs");
  return count > 0 ? "" : "needs a GPU: the driver reports no GPU";
}

/// Returns the property of a test that counts the launches of a kind of kernels, such as "kernel hopper: backward", for
/// the name of a kernel. The record requires some kinds of some parts.
inline std::string property_of(const std::string& kernel) {
  const std::size_t family = kernel.find(": ");
  return "kernel " + kernel.substr(0, kernel.find(' ', family == std::string::npos ? 0 : family + 2));
}

/// The driver functions that the tests call in addition to the functions that the library calls.
struct DriverOfTests {
  gpu::Status (*stream_create)(gpu::Stream* stream, unsigned flags);
  gpu::Status (*stream_synchronize)(gpu::Stream stream);
  gpu::Status (*copy_to_device)(gpu::DevicePointer to, const void* from, std::size_t bytes, gpu::Stream stream);
  gpu::Status (*copy_to_host)(void* to, gpu::DevicePointer from, std::size_t bytes, gpu::Stream stream);

  static const DriverOfTests& get() {
    static const DriverOfTests driver = [] {
      DriverOfTests opened{};
      find("cuStreamCreate", opened.stream_create);
      find("cuStreamSynchronize", opened.stream_synchronize);
      find("cuMemcpyHtoDAsync_v2", opened.copy_to_device);
      find("cuMemcpyDtoHAsync_v2", opened.copy_to_host);
      return opened;
    }();
    return driver;
  }

 private:
  template <class Function>
  static void find(const char* symbol, Function& function) {
    static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    function = reinterpret_cast<Function>(::dlsym(library, symbol));
    if (function == nullptr) throw std::runtime_error(std::string("libcuda.so.1 has no ") + symbol);
  }
};

/// The first GPU with a non-blocking stream. The GPU is current during the lifetime of the object.
class Gpu {
 public:
  Gpu() : current_(0) {
    constexpr unsigned non_blocking = 1;
    gpu::check(DriverOfTests::get().stream_create(&stream_, non_blocking), "making a stream");
  }

  gpu::Stream stream() const { return stream_; }

  void synchronize() const { gpu::check(DriverOfTests::get().stream_synchronize(stream_), "waiting for the kernels"); }

  /// The instance that all tests of the program share.
  static const Gpu& get() {
    static const Gpu gpu;
    return gpu;
  }

 private:
  gpu::CurrentDevice current_;
  gpu::Stream stream_ = nullptr;
};

/// Memory on the GPU between two guards, with a copy on the host. Nothing may change the guards. Every byte of a guard
/// is 0xff, which is NaN in all floating types, so a result that depends on a guard is NaN. compute-sanitizer knows the
/// end of an allocation and therefore finds more errors without guards.
class GuardedMemory {
 public:
  GuardedMemory(const Gpu& gpu, const std::vector<std::byte>& content, std::size_t guard)
      : gpu_(gpu), guard_(guard), host_(content.size() + 2 * guard, std::byte{0xff}) {
    std::memcpy(host_.data() + guard, content.data(), content.size());
    gpu::check(gpu::Driver::get().allocate_async(&address_, host_.size(), gpu.stream()), "allocating memory");
    gpu::check(DriverOfTests::get().copy_to_device(address_, host_.data(), host_.size(), gpu.stream()),
               "copying to the GPU");
  }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory() { gpu::Driver::get().free_async(address_, gpu_.stream()); }

  std::byte* data() const { return reinterpret_cast<std::byte*>(address_ + guard_); }

  /// Copies the memory to the host and waits for all work on the stream.
  void fetch() {
    gpu::check(DriverOfTests::get().copy_to_host(host_.data(), address_, host_.size(), gpu_.stream()),
               "copying from the GPU");
    gpu_.synchronize();
  }

  /// The bytes between the guards at the last fetch().
  std::vector<std::byte> content() const {
    const auto guard = static_cast<std::ptrdiff_t>(guard_);
    return {host_.begin() + guard, host_.end() - guard};
  }
  bool guards_are_intact() const {
    for (std::size_t i = 0; i < guard_; ++i) {
      if (host_[i] != std::byte{0xff} || host_[host_.size() - 1 - i] != std::byte{0xff}) return false;
    }
    return true;
  }

 private:
  const Gpu& gpu_;
  std::size_t guard_;
  std::vector<std::byte> host_;
  gpu::DevicePointer address_ = 0;
};

}  // namespace gdpa::test
