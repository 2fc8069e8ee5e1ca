// Arithmetic of integers and floating-point numbers. Approximations of the hardware are computed with the accuracy of
// fp32. Subnormal numbers become 0 if the instruction specifies it.
#include <algorithm>
#include <cmath>
#include <limits>

#include "integers.h"
#include "numbers.h"
#include "operations.h"

namespace gdpa::emulator {

namespace {

using std::string_view;

struct Subtract {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
    } else {
      return a - b;
    }
  }
};
struct Multiply {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    } else {
      return a * b;
    }
  }
};
__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;
struct MultiplyHigh {
  template <class T>
  T operator()(T a, T b) const {
    using Wide = std::conditional_t<std::is_signed_v<T>, Int128, Uint128>;
    return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b) >> (8 * sizeof(T)));
  }
};
struct AddAbsoluteDifference {
  template <class T>
  T operator()(T a, T b, T c) const {
    return Add{}(a < b ? Subtract{}(b, a) : Subtract{}(a, b), c);
  }
};
struct MultiplyAdd {
  template <class T>
  T operator()(T a, T b, T c) const {
    if constexpr (std::is_floating_point_v<T>) {
      return std::fma(a, b, c);
    } else {
      return Add{}(Multiply{}(a, b), c);
    }
  }
};
template <class D>
struct MultiplyWide {
  template <class T>
  D operator()(T a, T b) const {
    return static_cast<D>(a) * static_cast<D>(b);
  }
};
template <class D>
struct MultiplyAddWide {
  template <class T>
  D operator()(T a, T b, D c) const {
    return Add{}(MultiplyWide<D>{}(a, b), c);
  }
};
/// By 0 an integer gives whatever it likes: here -1, and the remainder is a.
struct Divide {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return static_cast<T>(-1);
      if (std::is_signed_v<T> && b == static_cast<T>(-1)) return Subtract{}(T{0}, a);
    }
    return static_cast<T>(a / b);
  }
};
struct Remainder {
  template <class T>
  T operator()(T a, T b) const {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};
struct Minimum {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      return std::fmin(a, b);
    } else {
      return std::min(a, b);
    }
  }
};
struct Maximum {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      return std::fmax(a, b);
    } else {
      return std::max(a, b);
    }
  }
};
struct MinimumOrNan {
  float operator()(float a, float b) const { return std::isnan(a) || std::isnan(b) ? std::nanf("") : std::fmin(a, b); }
};
struct MaximumOrNan {
  float operator()(float a, float b) const { return std::isnan(a) || std::isnan(b) ? std::nanf("") : std::fmax(a, b); }
};
/// The second with the sign of the first.
struct CopySign {
  template <class T>
  T operator()(T a, T b) const {
    return std::copysign(b, a);
  }
};
struct Negate {
  template <class T>
  T operator()(T a) const {
    if constexpr (std::is_floating_point_v<T>) {
      return -a;
    } else {
      return Subtract{}(T{0}, a);
    }
  }
};
struct Absolute {
  template <class T>
  T operator()(T a) const {
    if constexpr (std::is_floating_point_v<T>) {
      return std::fabs(a);
    } else {
      return a < 0 ? Negate{}(a) : a;
    }
  }
};

float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }

struct FlushedAdd {
  float operator()(float a, float b) const { return flushed(flushed(a) + flushed(b)); }
};
struct FlushedMultiply {
  float operator()(float a, float b) const { return flushed(flushed(a) * flushed(b)); }
};
struct FlushedMultiplyAdd {
  float operator()(float a, float b, float c) const { return flushed(std::fma(flushed(a), flushed(b), flushed(c))); }
};
/// For |b| in [2^-126, 2^126], as the instruction promises.
struct ApproximateDivide {
  float operator()(float a, float b) const { return flushed(flushed(a) / flushed(b)); }
};
struct ApproximateReciprocal {
  float operator()(float x) const { return flushed(1 / flushed(x)); }
};
struct Reciprocal {
  template <class T>
  T operator()(T x) const {
    return 1 / x;
  }
};
struct ApproximateSquareRoot {
  float operator()(float x) const { return std::sqrt(flushed(x)); }
};
struct SquareRoot {
  template <class T>
  T operator()(T x) const {
    return std::sqrt(x);
  }
};
struct ReciprocalSquareRoot {
  float operator()(float x) const { return 1 / std::sqrt(flushed(x)); }
};
struct Tanh {
  float operator()(float x) const { return std::tanh(x); }
};
struct Exp2 {
  float operator()(float x) const { return flushed(std::exp2(flushed(x))); }
};
struct Log2 {
  float operator()(float x) const { return std::log2(flushed(x)); }
};
struct Sine {
  float operator()(float x) const { return std::sin(x); }
};
struct Cosine {
  float operator()(float x) const { return std::cos(x); }
};

/// A sum of two numbers: the nearest double and the remainder.
struct Sum {
  Sum(double a, double b) : nearest(a + b) {
    const double from_b = nearest - a;
    rest = (a - (nearest - from_b)) + (b - from_b);
  }
  double nearest, rest;

  float rounded_down() const {
    const auto result = static_cast<float>(nearest);
    const double error = static_cast<double>(result) - nearest;
    const bool is_above = error > 0 || (error == 0 && rest < 0);
    return is_above ? std::nextafter(result, -std::numeric_limits<float>::infinity()) : result;
  }
  float rounded_toward_zero() const {
    Sum negated = *this;
    negated.nearest = -nearest;
    negated.rest = -rest;
    return nearest > 0 ? rounded_down() : -negated.rounded_down();
  }
};
struct AddTowardZero {
  float operator()(float a, float b) const {
    return Sum(static_cast<double>(a), static_cast<double>(b)).rounded_toward_zero();
  }
};
/// The product of two floats is exact in double.
struct MultiplyAddDown {
  float operator()(float a, float b, float c) const {
    return Sum(static_cast<double>(a) * static_cast<double>(b), static_cast<double>(c)).rounded_down();
  }
};

/// Multiplies two 16-bit numbers in each register, and adds a third operand, if present.
template <class Half>
struct MultiplyPairs {
  template <class... Third>
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b, Third... third) const {
    std::uint32_t result = 0;
    for (unsigned part = 0; part < 2; ++part) {
      const auto number = [part](std::uint32_t pair) {
        return static_cast<double>(Half::to_float(static_cast<std::uint16_t>(pair >> 16 * part)));
      };
      const double exact = ((number(a) * number(b)) + ... + number(third));
      result |= static_cast<std::uint32_t>(Half::from(static_cast<float>(exact))) << 16 * part;
    }
    return result;
  }
};

template <class F>
Execute floating_unary(string_view type) {
  return for_floating(type, [](auto t) -> Execute { return &lanewise<F, decltype(t), decltype(t)>; });
}
template <class F>
Execute float_unary(string_view type) {
  return type == "f32" ? &lanewise<F, float, float> : nullptr;
}
template <class F>
Execute float_binary(string_view type) {
  return type == "f32" ? &lanewise<F, float, float, float> : nullptr;
}

Execute multiply_add(string_view type) {
  return for_number(type, [](auto t) -> Execute {
    return &lanewise<MultiplyAdd, decltype(t), decltype(t), decltype(t), decltype(t)>;
  });
}

/// The result of twice the width, D, of two numbers T; a third one is added.
template <class D, class T>
Execute wide(bool adds) {
  if (adds) return &lanewise<MultiplyAddWide<D>, D, T, T, D>;
  return &lanewise<MultiplyWide<D>, D, T, T>;
}
Execute wide(string_view type, bool adds) {
  if (type == "s16") return wide<std::int32_t, std::int16_t>(adds);
  if (type == "u16") return wide<std::uint32_t, std::uint16_t>(adds);
  if (type == "s32") return wide<std::int64_t, std::int32_t>(adds);
  if (type == "u32") return wide<std::uint64_t, std::uint32_t>(adds);
  return nullptr;
}

template <class Half>
Execute multiply_pairs(bool adds) {
  using Pair = std::uint32_t;
  if (adds) return &lanewise<MultiplyPairs<Half>, Pair, Pair, Pair, Pair>;
  return &lanewise<MultiplyPairs<Half>, Pair, Pair, Pair>;
}

Execute product(const Name& name, bool adds) {
  const string_view type = name.type();
  name.may_have({"lo"});
  if (type == "bf16x2") return multiply_pairs<BFloat16>(adds);
  if (type == "f16x2") return multiply_pairs<Float16>(adds);
  if (name.has("wide")) return wide(type, adds);
  if (name.has("hi")) return adds ? nullptr : binary_of_integers<MultiplyHigh>(type);
  if (name.has("rm")) {
    return adds && type == "f32" ? &lanewise<MultiplyAddDown, float, float, float, float> : nullptr;
  }
  if (!name.has("ftz")) return adds ? multiply_add(type) : binary<Multiply>(type);
  return adds ? &lanewise<FlushedMultiplyAdd, float, float, float, float> : float_binary<FlushedMultiply>(type);
}

}  // namespace

Execute arithmetic(Instruction&, const Name& name) {
  const string_view base = name.base(), type = name.type();
  const bool is_approximate = name.has("approx");
  name.may_have({"rn"});
  if (base == "add" && name.has("rz")) return float_binary<AddTowardZero>(type);
  if (base == "add") return name.has("ftz") ? float_binary<FlushedAdd>(type) : binary<Add>(type);
  if (base == "sub") return name.has("ftz") ? nullptr : binary<Subtract>(type);
  if (base == "mul") return product(name, false);
  if (base == "mad" || base == "fma") return product(name, true);
  if (base == "sad" && type == "s32") {
    return &lanewise<AddAbsoluteDifference, std::int32_t, std::int32_t, std::int32_t, std::int32_t>;
  }
  if (base == "div")
    return is_approximate && name.has("ftz") ? float_binary<ApproximateDivide>(type) : binary<Divide>(type);
  if (base == "rem") return binary_of_integers<Remainder>(type);
  if (base == "min") return name.has("NaN") ? float_binary<MinimumOrNan>(type) : binary<Minimum>(type);
  if (base == "max") return name.has("NaN") ? float_binary<MaximumOrNan>(type) : binary<Maximum>(type);
  if (base == "neg") return unary<Negate>(type);
  if (base == "abs") return unary<Absolute>(type);
  if (base == "copysign") {
    return for_floating(type,
                        [](auto t) -> Execute { return &lanewise<CopySign, decltype(t), decltype(t), decltype(t)>; });
  }
  if (is_approximate) name.may_have({"ftz"});
  if (base == "rcp")
    return is_approximate ? float_unary<ApproximateReciprocal>(type) : floating_unary<Reciprocal>(type);
  if (base == "sqrt")
    return is_approximate ? float_unary<ApproximateSquareRoot>(type) : floating_unary<SquareRoot>(type);
  if (base == "rsqrt") return float_unary<ReciprocalSquareRoot>(type);
  if (base == "tanh") return float_unary<Tanh>(type);
  if (base == "ex2") return float_unary<Exp2>(type);
  if (base == "lg2") return float_unary<Log2>(type);
  if (base == "sin") return float_unary<Sine>(type);
  if (base == "cos") return float_unary<Cosine>(type);
  return nullptr;
}

}  // namespace gdpa::emulator
