// Whether two views have an element in common. An output of a call must not overlap an input or another output. Views
// that interleave, such as the gradients of a fused QKV projection, have no common element.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "gdpa/tensor.h"

namespace gdpa::api {

/// The addresses of the bytes of a view: `first` + sum over the dimensions of (index * stride). The last dimension
/// counts the bytes of an element. All bytes are in [begin, end), which is empty for a view without elements.
struct Bytes {
  static constexpr int max_rank = TensorView::max_rank + 1;

  int64_t first = 0;
  int64_t begin = 0;
  int64_t end = 0;
  int rank = 0;
  std::array<int64_t, max_rank> sizes = {};
  std::array<int64_t, max_rank> strides = {};

  template <class Pointer>
  static Bytes of(const BasicTensorView<Pointer>& view) {
    Bytes bytes;
    bytes.first = static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(view.data));
    bytes.begin = bytes.end = bytes.first;
    const int64_t element = size_in_bytes(view.dtype);
    bool has_elements = true;
    for (std::size_t i = 0; i < static_cast<std::size_t>(view.rank); ++i) {
      has_elements = has_elements && view.sizes[i] > 0;
      bytes.add(view.sizes[i], view.strides[i] * element);
    }
    bytes.add(element, 1);
    bytes.end = has_elements ? bytes.end + 1 : bytes.begin;
    return bytes;
  }

 private:
  void add(int64_t size, int64_t stride) {
    const auto at = static_cast<std::size_t>(rank++);
    sizes[at] = size;
    strides[at] = stride;
    (stride < 0 ? begin : end) += stride * (size - 1);
  }
};

/// An argument of a call.
struct NamedBytes {
  std::string_view who;
  Bytes bytes;
};

/// Returns whether a byte belongs to both views. The search for such a byte is bounded. For unusual strides it can
/// reach the bound, and the result is then true although the views may be disjoint.
bool overlap(const Bytes& one, const Bytes& other);

}  // namespace gdpa::api
