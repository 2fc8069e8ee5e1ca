// Mask: the keys that a query attends to. A caller fills in the struct, and the kernels of the CPU and of GPUs call its
// functions. The header includes no standard library, so that NVRTC compiles it unchanged.
#pragma once

#include "gdpa/integers.h"

namespace gdpa {

/// The position of the diagonal of a window if a sequence has different numbers of keys and queries.
enum class Diagonal : int32_t {
  bottom_right,  ///< the last query attends to keys up to the last key: torch.nn.attention.varlen, flash-attn
  upper_left,    ///< the first query attends to keys up to the first key: scaled_dot_product_attention(is_causal=True)
};

/// A half-open range of keys or of queries.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  GDPA_HOST_DEVICE constexpr bool empty() const { return begin >= end; }
  GDPA_HOST_DEVICE constexpr int64_t size() const { return empty() ? 0 : end - begin; }
};

/// A window around the diagonal. Query i attends to key j where
///     i + shift - left <= j <= i + shift + right,   shift = L_k - L_q for bottom_right, else 0.
/// A side of -1 has no bound; any other side is a number of keys from 0 to the largest int64_t. P and dS are 0 outside
/// the window. The default mask excludes no pair.
///
///     gdpa::Mask::causal()           // each query attends to its own position and all earlier ones
///     gdpa::Mask::window(128, 0)     // ... and to at most 128 earlier keys
///
/// The functions compare a side with a difference of lengths. They never add a side to a length, because that sum can
/// overflow. Lengths are below 2^61.
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

  /// Returns the keys in [0, length_k) that at least one query of [queries.begin, queries.end) attends to. They are
  /// always one contiguous range, which is empty if there are none.
  GDPA_HOST_DEVICE constexpr Range keys(Range queries, int64_t length_q, int64_t length_k) const {
    if (queries.empty()) return Range{};
    const int64_t shift = shift_of(length_q, length_k);
    Range result{0, length_k};
    if (left >= 0 && left < queries.begin + shift) result.begin = queries.begin + shift - left;
    if (right >= 0 && right < length_k - queries.end - shift) result.end = queries.end + shift + right;
    if (result.empty()) return Range{};
    return result;
  }

  /// Returns the queries in [0, length_q) that attend to at least one key of [keys.begin, keys.end).
  GDPA_HOST_DEVICE constexpr Range queries(Range keys, int64_t length_q, int64_t length_k) const {
    return Mask{right, left, diagonal}.keys(keys, length_k, length_q);
  }

  /// Returns whether each of these queries attends to each of these keys. A tile for which it is true needs no test of
  /// its scores.
  GDPA_HOST_DEVICE constexpr bool is_full(Range queries, Range keys, int64_t length_q, int64_t length_k) const {
    const int64_t shift = shift_of(length_q, length_k);
    const bool left_full = left < 0 || left >= queries.end - 1 + shift - keys.begin;
    const bool right_full = right < 0 || right >= keys.end - 1 - queries.begin - shift;
    return left_full && right_full;
  }

  /// Returns the key of query 0 on the diagonal, which may be negative.
  GDPA_HOST_DEVICE constexpr int64_t shift_of(int64_t length_q, int64_t length_k) const {
    return diagonal == Diagonal::bottom_right ? length_k - length_q : 0;
  }
};

}  // namespace gdpa
