// What a cubin says of the kernel in it, read from the file itself: no GPU and no driver is needed.
#pragma once

#include <optional>
#include <string_view>

namespace gdpa::jit {

/// A cubin: an ELF file with the code of one kernel, which the compiler has described in its section .nv.info.
/// It refers to the image, which must live as long.
class Cubin {
 public:
  explicit Cubin(std::string_view image) : image_(image) {}

  /// The value of an `extern "C" __constant__ int`, or nothing where there is none of that name.
  std::optional<int> constant(std::string_view name) const;

  std::optional<int> registers() const;    ///< of a thread
  std::optional<int> local_bytes() const;  ///< of a thread, in memory: spilled registers, and arrays with an index
  int static_shared_bytes() const;         ///< of a CTA, beside what the launch asks for

 private:
  std::string_view image_;
};

}  // namespace gdpa::jit
