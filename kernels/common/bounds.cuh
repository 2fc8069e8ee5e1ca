// Interval arithmetic for the condition of a mask: the numbers that an expression can have for all scores of a tile.
// The generated struct ConditionBounds (src/codegen/bounds.cpp) uses it in place of the arithmetic of
// common/index.cuh, and every enclosure contains the results of that arithmetic.
// The host includes this file too, to test it.
#pragma once

#include "gdpa/integers.h"

#ifndef __CUDACC_RTC__
#include <cmath>
#endif

namespace gdpa::bounds {

/// The type that common/index.cuh gives a number.
enum class Type { int32, int64, float32 };

#ifdef __CUDACC_RTC__
__device__ inline double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }
#else
inline double infinity() { return HUGE_VAL; }
#endif

/// All numbers from `low` to `high`. An enclosure from minus infinity to infinity may also have NaN, and integers that
/// wrap: nothing is known.
struct Bounds {
  double low;
  double high;
  Type type;

  GDPA_HOST_DEVICE bool is_unknown() const { return low == -infinity() && high == infinity(); }
  GDPA_HOST_DEVICE bool is_point() const { return low == high; }
};

GDPA_HOST_DEVICE inline Bounds unknown(Type type) { return {-infinity(), infinity(), type}; }

/// The truth values of a comparison.
GDPA_HOST_DEVICE inline Bounds truth(bool can_be_false, bool can_be_true) {
  return {can_be_false ? 0.0 : 1.0, can_be_true ? 1.0 : 0.0, Type::int32};
}

GDPA_HOST_DEVICE inline Bounds number(int x) { return {static_cast<double>(x), static_cast<double>(x), Type::int32}; }
GDPA_HOST_DEVICE inline Bounds number(long long x) {
  constexpr long long most_exact = 1ll << 53;
  if (x > most_exact || x < -most_exact) return unknown(Type::int64);
  return {static_cast<double>(x), static_cast<double>(x), Type::int64};
}
GDPA_HOST_DEVICE inline Bounds number(float x) { return x != x ? unknown(Type::float32) : Bounds{x, x, Type::float32}; }

/// The integers of two positions and all between them.
GDPA_HOST_DEVICE inline Bounds positions(int first, int last) {
  return {static_cast<double>(first), static_cast<double>(last), Type::int32};
}

GDPA_HOST_DEVICE inline Bounds hull(const Bounds& a, const Bounds& b) {
  return {a.low < b.low ? a.low : b.low, a.high > b.high ? a.high : b.high, a.type};
}

/// The type of an operation on two numbers.
GDPA_HOST_DEVICE inline Type common_type(const Bounds& a, const Bounds& b) {
  if (a.type == Type::float32 || b.type == Type::float32) return Type::float32;
  return a.type == Type::int64 || b.type == Type::int64 ? Type::int64 : Type::int32;
}

/// The same numbers in another type. A conversion to fp32 rounds, which keeps the order.
GDPA_HOST_DEVICE inline Bounds converted(const Bounds& a, Type type) {
  if (type != Type::float32 || a.type == Type::float32) return {a.low, a.high, type};
  return {static_cast<double>(static_cast<float>(a.low)), static_cast<double>(static_cast<float>(a.high)), type};
}

/// A bound that no two rounding errors of fp32 exceed, in the direction of `sign`.
GDPA_HOST_DEVICE inline double outward(double bound, double sign) {
  constexpr double relative = 0x1p-22, absolute = 0x1p-125;
  return bound + sign * (fabs(bound) * relative + absolute);
}

/// The result of an operation: unknown if it is not finite in its type, if an integer may wrap, or if it is not exact
/// in fp64. An fp32 result is wider by two rounding errors, because the compiler may contract two operations into one.
GDPA_HOST_DEVICE inline Bounds rounded(double low, double high, Type type) {
  const bool is_float = type == Type::float32;
  const double most = is_float ? 0x1.fffffp127 : type == Type::int32 ? 0x1p31 - 1 : 0x1p53;
  const bool is_within = low >= -most && high <= most;  // false for NaN
  if (!is_within) return unknown(type);
  return is_float ? Bounds{outward(low, -1), outward(high, 1), type} : Bounds{low, high, type};
}

/// The rounded hull of operation(a, b) at the ends of two enclosures.
template <class Operation>
GDPA_HOST_DEVICE inline Bounds hull_of_ends(const Bounds& x, const Bounds& y, Type type, Operation operation) {
  const double a = operation(x.low, y.low), b = operation(x.low, y.high);
  const double c = operation(x.high, y.low), d = operation(x.high, y.high);
  if (a != a || b != b || c != c || d != d) return unknown(type);
  return rounded(fmin(fmin(a, b), fmin(c, d)), fmax(fmax(a, b), fmax(c, d)), type);
}

/// Calls operation(a, b) on operands of the common type, unless one is unknown.
template <class Operation>
GDPA_HOST_DEVICE inline Bounds of_known(const Bounds& a, const Bounds& b, Operation operation) {
  const Type type = common_type(a, b);
  if (a.is_unknown() || b.is_unknown()) return unknown(type);
  return operation(converted(a, type), converted(b, type), type);
}

GDPA_HOST_DEVICE inline Bounds add(const Bounds& x, const Bounds& y) {
  return of_known(x, y, [](auto a, auto b, Type type) { return rounded(a.low + b.low, a.high + b.high, type); });
}
GDPA_HOST_DEVICE inline Bounds subtract(const Bounds& x, const Bounds& y) {
  return of_known(x, y, [](auto a, auto b, Type type) { return rounded(a.low - b.high, a.high - b.low, type); });
}
GDPA_HOST_DEVICE inline Bounds multiply(const Bounds& x, const Bounds& y) {
  const auto product = [](double a, double b) { return a * b; };
  return of_known(x, y, [&](auto a, auto b, Type type) { return hull_of_ends(a, b, type, product); });
}
/// A quotient is fp32.
GDPA_HOST_DEVICE inline Bounds divide(const Bounds& x, const Bounds& y) {
  const Bounds a = converted(x, Type::float32), b = converted(y, Type::float32);
  if (a.is_unknown() || b.is_unknown() || (b.low <= 0 && b.high >= 0)) return unknown(Type::float32);
  return hull_of_ends(a, b, Type::float32, [](double p, double q) { return p / q; });
}
GDPA_HOST_DEVICE inline Bounds floor(const Bounds& a) { return {::floor(a.low), ::floor(a.high), a.type}; }
GDPA_HOST_DEVICE inline Bounds floor_divide(const Bounds& x, const Bounds& y) {
  const Type type = common_type(x, y);
  if (type == Type::float32) return floor(divide(x, y));
  if (x.is_unknown() || y.is_unknown() || (y.low <= 0 && y.high >= 0)) return unknown(type);
  // The quotient of integers below 2^53, rounded to fp64, may round up to the next integer.
  return hull_of_ends(x, y, type, [](double a, double b) {
    const double down = ::floor(a / b);
    const bool is_above = b > 0 ? down * b > a : down * b < a;
    return is_above ? down - 1 : down;
  });
}
GDPA_HOST_DEVICE inline Bounds negate(const Bounds& a) { return {-a.high, -a.low, a.type}; }
GDPA_HOST_DEVICE inline Bounds absolute(const Bounds& a) {
  if (a.is_unknown()) return a;
  const double least = a.low > 0 ? a.low : a.high < 0 ? -a.high : 0;
  return {least, fmax(fabs(a.low), fabs(a.high)), a.type};
}
GDPA_HOST_DEVICE inline Bounds sign(const Bounds& a) {
  if (a.is_unknown()) return a;
  const auto of = [](double x) { return x > 0 ? 1.0 : x < 0 ? -1.0 : 0.0; };
  return {of(a.low), of(a.high), a.type};
}
GDPA_HOST_DEVICE inline Bounds minimum(const Bounds& x, const Bounds& y) {
  return of_known(x, y, [](auto a, auto b, Type type) {
    return Bounds{fmin(a.low, b.low), fmin(a.high, b.high), type};
  });
}
GDPA_HOST_DEVICE inline Bounds maximum(const Bounds& x, const Bounds& y) {
  return of_known(x, y, [](auto a, auto b, Type type) {
    return Bounds{fmax(a.low, b.low), fmax(a.high, b.high), type};
  });
}

/// Calls compare(a, b) on operands of the common type. An unknown operand may be NaN, and then both truth values are
/// possible.
template <class Compare>
GDPA_HOST_DEVICE inline Bounds compared(const Bounds& x, const Bounds& y, Compare compare) {
  if (x.is_unknown() || y.is_unknown()) return truth(true, true);
  const Type type = common_type(x, y);
  return compare(converted(x, type), converted(y, type));
}
GDPA_HOST_DEVICE inline Bounds less(const Bounds& x, const Bounds& y) {
  return compared(x, y, [](const Bounds& a, const Bounds& b) { return truth(a.high >= b.low, a.low < b.high); });
}
GDPA_HOST_DEVICE inline Bounds less_equal(const Bounds& x, const Bounds& y) {
  return compared(x, y, [](const Bounds& a, const Bounds& b) { return truth(a.high > b.low, a.low <= b.high); });
}
GDPA_HOST_DEVICE inline Bounds equal(const Bounds& x, const Bounds& y) {
  return compared(x, y, [](const Bounds& a, const Bounds& b) {
    const bool is_same_point = a.is_point() && b.is_point() && a.low == b.low;
    return truth(!is_same_point, a.low <= b.high && b.low <= a.high);
  });
}

/// condition ? a : b
GDPA_HOST_DEVICE inline Bounds select(const Bounds& condition, const Bounds& x, const Bounds& y) {
  const Type type = common_type(x, y);
  const Bounds a = converted(x, type), b = converted(y, type);
  if (condition.low > 0 || condition.high < 0) return a;
  if (condition.low == 0 && condition.high == 0) return b;
  return hull(a, b);
}

/// The indices of an axis that an index can have, clamped.
struct Indices {
  int first;
  int last;

  GDPA_HOST_DEVICE int count() const { return last - first + 1; }
};
GDPA_HOST_DEVICE inline Indices indices(const Bounds& index, int last) {
  const auto nearest = [last](double x) { return static_cast<int>(x < 0 ? 0 : x > last ? last : ::floor(x)); };
  if (index.is_unknown()) return {0, last};
  return {nearest(index.low), nearest(index.high)};
}

/// An enclosure of more elements of a tensor takes longer than the evaluation of the scores of a tile. A warp reads the
/// elements that depend on the query alone together.
constexpr int64_t most_elements = 1024, most_elements_of_warp = 8192;

/// The hull of elements of a tensor, in their own type: fp64 is slow on most GPUs.
template <class Number>
struct Hull {
  Number low = 0;
  Number high = 0;
  bool is_empty = true;
  bool has_nan = false;

  GDPA_HOST_DEVICE void add(Number number) {
    has_nan |= number != number;
    low = is_empty || number < low ? number : low;
    high = is_empty || number > high ? number : high;
    is_empty = false;
  }

#ifdef __CUDACC__
  /// Every lane gets the hull of the elements of all lanes.
  __device__ void join_warp() {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      const Number low_of_other = __shfl_xor_sync(0xffffffffu, low, distance);
      const Number high_of_other = __shfl_xor_sync(0xffffffffu, high, distance);
      const bool is_other_empty = __shfl_xor_sync(0xffffffffu, static_cast<int>(is_empty), distance) != 0;
      if (is_other_empty) continue;
      low = is_empty || low_of_other < low ? low_of_other : low;
      high = is_empty || high_of_other > high ? high_of_other : high;
      is_empty = false;
    }
    has_nan = __ballot_sync(0xffffffffu, has_nan) != 0;
  }
#endif

  GDPA_HOST_DEVICE Bounds bounds() const {
    const Bounds first = number(low), last = number(high);
    if (has_nan || first.is_unknown() || last.is_unknown()) return unknown(first.type);
    return {first.low, last.high, first.type};
  }
};

}  // namespace gdpa::bounds
