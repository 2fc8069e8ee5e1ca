// Reads the properties of a kernel from its cubin, without a GPU or a driver.
#pragma once

#include <optional>
#include <string_view>

namespace gdpa::jit {

/// A cubin: an ELF file with the code of one kernel. Its section .nv.info describes the kernel. The object refers to
/// the image, which must outlive it.
class Cubin {
 public:
  explicit Cubin(std::string_view image) : image_(image) {}

  /// Returns the value of an `extern "C" __constant__ int`, or nothing if the cubin has no constant of this name.
  std::optional<int> constant(std::string_view name) const;

  std::optional<int> registers() const;    ///< of a thread
  std::optional<int> local_bytes() const;  ///< of a thread: spilled registers, and arrays with a variable index
  int static_shared_bytes() const;         ///< of a CTA, without the dynamic shared memory

 private:
  std::string_view image_;
};

}  // namespace gdpa::jit
