// Whether two views have an element in common. An output of a call must not overlap an input or another output. Views
// that interleave, such as the gradients of a fused QKV projection, have no common element.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "api/view.h"

namespace gdpa::api {

/// The addresses of the bytes of a view: `begin` + the sum over the dimensions of index * step. The last dimension
/// counts the bytes of an element. All bytes are in [begin, end), which is empty for a view without elements.
struct Bytes {
  struct Dimension {
    int64_t step = 0;  ///< 0 or more: a dimension of a negative stride counts from its end
    int64_t last = 0;  ///< the largest index
  };

  int64_t begin = 0;
  int64_t end = 0;
  std::array<Dimension, TensorView::max_rank + 1> dimensions = {};

  static Bytes of(const TensorView& view) {
    Bytes bytes;
    bytes.begin = bytes.end = static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(view.data));
    if (!has_elements(view)) return bytes;
    const int64_t element = size_in_bytes(view.dtype);
    bytes.dimensions.back() = {1, element - 1};
    for (std::size_t i = 0; i < static_cast<std::size_t>(view.rank); ++i) {
      const int64_t stride = view.strides[i] * element, last = view.sizes[i] - 1;
      bytes.dimensions[i] = {std::abs(stride), last};
      (stride < 0 ? bytes.begin : bytes.end) += stride * last;
    }
    bytes.end += element;
    return bytes;
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
