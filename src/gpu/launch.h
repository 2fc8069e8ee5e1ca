// Launch: one step of a call on a GPU. It runs a kernel, or clears memory.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#include "gpu/call.h"
#include "gpu/kernel.h"

namespace gdpa::gpu {

/// Device memory that a call clears.
struct Cleared {
  void* data;
  int64_t bytes;
};

class Launch {
 public:
  static constexpr std::size_t argument_alignment = 64;     ///< of tensor maps
  static constexpr std::size_t most_argument_bytes = 8192;  ///< a driver of CUDA 12.1 or later takes four times as many

  /// Runs a kernel with `ctas` CTAs, or an upper bound of them. `fill(bound_call)` returns its arguments.
  template <Specification Spec, class Fill>
  requires std::same_as < std::invoke_result_t<const Fill&, const BoundCall&>,
  typename Spec::Arguments > static Launch of(Spec spec, int64_t ctas, Fill fill) {
    using Arguments = typename Spec::Arguments;
    static_assert(std::is_trivially_copyable_v<Arguments> && sizeof(Arguments) <= most_argument_bytes &&
                  alignof(Arguments) <= argument_alignment);
    Launch launch;
    launch.kernel_.emplace(std::move(spec));
    launch.ctas_ = ctas;
    launch.fill_ = [fill = std::move(fill)](const BoundCall& call, void* arguments) {
      new (arguments) Arguments(fill(call));
    };
    return launch;
  }

  /// Clears the memory that `where(bound_call)` returns.
  static Launch clear(std::function<Cleared(const BoundCall&)> where) {
    Launch launch;
    launch.where_ = std::move(where);
    return launch;
  }

  /// Clears `bytes` bytes of the workspace.
  static Launch clear(int64_t offset, int64_t bytes) {
    return clear([offset, bytes](const BoundCall& call) { return Cleared{call.at<void>(offset), bytes}; });
  }

  /// The kernel may start before the previous step has ended. Only for kernels that begin with a wait for this end, as
  /// all Hopper kernels do.
  Launch overlapping_previous() && {
    overlaps_previous_ = true;
    return std::move(*this);
  }

  bool clears() const { return !kernel_.has_value(); }
  Cleared cleared(const BoundCall& call) const { return where_(call); }

  const Kernel& kernel() const { return *kernel_; }
  Kernel& kernel() { return *kernel_; }
  int64_t ctas() const { return ctas_; }
  bool overlaps_previous() const { return overlaps_previous_; }

  /// Writes the arguments of the kernel to `arguments`, aligned memory of most_argument_bytes bytes.
  void fill(const BoundCall& call, void* arguments) const { fill_(call, arguments); }

  /// The specification of the kernel, or null if the launch runs another kernel or clears memory.
  template <Specification Spec>
  const Spec* as() const {
    return kernel_ ? kernel_->as<Spec>() : nullptr;
  }

 private:
  Launch() = default;

  std::optional<Kernel> kernel_;
  int64_t ctas_ = 0;
  bool overlaps_previous_ = false;
  std::function<void(const BoundCall&, void*)> fill_;
  std::function<Cleared(const BoundCall&)> where_;
};

}  // namespace gdpa::gpu
