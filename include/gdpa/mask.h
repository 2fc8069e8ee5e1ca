// Mask: which keys a query meets. Users fill it in, and every backend, on the CPU and on a GPU, asks this one
// struct; it is freestanding so that NVRTC compiles it as it stands.
#pragma once

#include "gdpa/integers.h"

namespace gdpa {

/// Where the diagonal of a window lies when a sequence has more keys than queries, or fewer.
enum class Diagonal : int32_t {
  bottom_right,  ///< the last query sees up to the last key: torch.nn.attention.varlen, flash-attn
  upper_left,    ///< the first query sees up to the first key: scaled_dot_product_attention(is_causal=True)
};

/// A half-open range of keys or of queries.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  GDPA_HOST_DEVICE constexpr bool empty() const { return begin >= end; }
  GDPA_HOST_DEVICE constexpr int64_t size() const { return empty() ? 0 : end - begin; }
};

/// A window around the diagonal: query i meets key j where
///     i + shift - left <= j <= i + shift + right,   shift = L_k - L_q for bottom_right, else 0,
/// and a side of -1 has no bound. A score outside contributes nothing: P and dS are 0 there. The default keeps all.
struct Mask {
  int64_t left = -1;
  int64_t right = -1;
  Diagonal diagonal = Diagonal::bottom_right;

  GDPA_HOST_DEVICE static constexpr Mask all() { return Mask{}; }
  GDPA_HOST_DEVICE static constexpr Mask causal(Diagonal diagonal = Diagonal::bottom_right) {
    return Mask{-1, 0, diagonal};
  }
  GDPA_HOST_DEVICE static constexpr Mask window(int64_t left, int64_t right) { return Mask{left, right}; }

  GDPA_HOST_DEVICE constexpr bool keeps_all() const { return left < 0 && right < 0; }

  /// The keys, of `length_k`, that at least one of the queries [queries.begin, queries.end) meets. The keys of one
  /// query are always one range, and so are those of neighbouring queries: a tile loop needs nothing else.
  GDPA_HOST_DEVICE constexpr Range keys(Range queries, int64_t length_q, int64_t length_k) const {
    if (queries.empty()) return Range{};
    const int64_t shift = shift_of(length_q, length_k);
    Range result{0, length_k};
    if (left >= 0 && queries.begin + shift - left > 0) result.begin = queries.begin + shift - left;
    if (right >= 0 && queries.end - 1 + shift + right + 1 < length_k) result.end = queries.end + shift + right;
    if (result.empty()) return Range{};
    return result;
  }

  /// The queries, of `length_q`, that meet at least one of the keys [keys.begin, keys.end).
  GDPA_HOST_DEVICE constexpr Range queries(Range keys, int64_t length_q, int64_t length_k) const {
    return Mask{right, left, diagonal}.keys(keys, length_k, length_q);
  }

  /// True when every one of these queries meets every one of these keys, so that a tile can skip the test.
  GDPA_HOST_DEVICE constexpr bool is_full(Range queries, Range keys, int64_t length_q, int64_t length_k) const {
    const int64_t shift = shift_of(length_q, length_k);
    const bool left_full = left < 0 || queries.end - 1 + shift - left <= keys.begin;
    const bool right_full = right < 0 || keys.end - 1 <= queries.begin + shift + right;
    return left_full && right_full;
  }

 private:
  GDPA_HOST_DEVICE constexpr int64_t shift_of(int64_t length_q, int64_t length_k) const {
    return diagonal == Diagonal::bottom_right ? length_k - length_q : 0;
  }
};

}  // namespace gdpa
