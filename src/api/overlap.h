// Whether two views have an element in common. An output of a call must not overlap an input or another output. Views
// that interleave, such as the gradients of a fused QKV projection, have no common element.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "api/view.h"

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

  static Bytes of(const TensorView& view) {
    Bytes bytes;
    bytes.first = static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(view.data));
    bytes.begin = bytes.end = bytes.first;
    const int64_t element = size_in_bytes(view.dtype);
    for (int i = 0; i < view.rank; ++i) bytes.add(size(view, i), stride(view, i) * element);
    bytes.add(element, 1);
    bytes.end = has_elements(view) ? bytes.end + 1 : bytes.begin;
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

/// Returns whether a byte belongs to both views. The search for such a byte is bounded. For unusual strides it can
/// reach the bound, and the result is then true although the views may be disjoint.
bool overlap(const Bytes& one, const Bytes& other);

/// The memory of the arguments of a call. A result must have memory of its own, because kernels read inputs after they
/// have written the first results.
class ArgumentMemory {
 public:
  void add(std::string_view who, const TensorView& view) { arguments_.push_back({who, Bytes::of(view)}); }

  /// Adds a result. Throws Error (value) if an argument that was added before has an element of it. Messages about
  /// later results call it `as`.
  void add_result(std::string_view who, const TensorView& view, std::string_view as);
  void add_result(std::string_view who, const TensorView& view) { add_result(who, view, who); }

 private:
  struct Argument {
    std::string_view who;
    Bytes bytes;
  };
  std::vector<Argument> arguments_;
};

}  // namespace gdpa::api
