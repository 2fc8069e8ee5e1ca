// Whether two views have an element in common: what a call writes must not be what it reads, or writes elsewhere.
// Views that interleave, as the gradients of a fused QKV projection do, have none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "gdpa/tensor.h"

namespace gdpa::api {

/// The bytes of a view: `first`, plus a multiple of each stride below the size of its dimension. The last dimension is
/// the bytes of an element. All of them lie in [begin, end), which is empty where the view has no elements.
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

/// Whether some byte belongs to both. The answer is exact, except where the search for such a byte is stopped because
/// it takes too long, as strides that tensors seldom have can make it: it is then true.
bool overlap(const Bytes& one, const Bytes& other);

}  // namespace gdpa::api
