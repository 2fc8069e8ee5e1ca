// TensorView: a description of the caller's memory. It owns nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "gdpa/export.h"

namespace gdpa {

enum class DType : std::uint8_t { float32, float64, bfloat16, float16, int32, int64 };

constexpr int64_t size_in_bytes(DType dtype) {
  constexpr std::array<int64_t, 6> bytes = {4, 8, 2, 2, 4, 8};  // in the order of DType
  const auto index = static_cast<std::size_t>(dtype);
  return index < bytes.size() ? bytes[index] : 0;
}

/// Returns PyTorch's name: "float32", "bfloat16", ...
GDPA_API const char* name(DType dtype);

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

/// A strided view of `rank` dimensions, at most 4. Strides count elements. A stride of an input may have any value,
/// including 0 (broadcast). The last stride must be 1. The memory at `data` must stay valid during the call.
template <class Pointer>
struct BasicTensorView {
  static constexpr int max_rank = 4;

  Pointer data = nullptr;
  DType dtype = DType::float32;
  Device device = {};
  int rank = 0;
  std::array<int64_t, max_rank> sizes = {};
  std::array<int64_t, max_rank> strides = {};

  /// Returns a dense row-major view: TensorView::contiguous(data, DType::float32, {tokens, heads, head_dim}).
  static BasicTensorView contiguous(Pointer data, DType dtype, std::initializer_list<int64_t> sizes,
                                    Device device = {}) {
    BasicTensorView view{data, dtype, device, 0, {}, {}};
    for (int64_t size : sizes) {
      if (view.rank == max_rank) break;
      view.sizes[static_cast<std::size_t>(view.rank++)] = size;
    }
    view.make_row_major();
    return view;
  }

  /// Gives the view the strides of dense row-major elements. Returns the number of elements.
  int64_t make_row_major() {
    int64_t stride = 1;
    for (auto i = static_cast<std::size_t>(rank); i-- > 0; stride *= sizes[i]) strides[i] = stride;
    return stride;
  }

  /// Returns the same memory as an input.
  operator BasicTensorView<const void*>() const requires(!std::is_const_v<std::remove_pointer_t<Pointer>>) {
    return {data, dtype, device, rank, sizes, strides};
  }
};

using TensorView = BasicTensorView<const void*>;
using MutableTensorView = BasicTensorView<void*>;

}  // namespace gdpa
