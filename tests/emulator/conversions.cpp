// cvt: from one type of numbers to another.
#include <cmath>
#include <cstring>
#include <limits>

#include "numbers.h"
#include "operations.h"

namespace gdpa::emulator {

namespace {

using std::string_view;

/// The rounding of a conversion to an integer, or from an integer to fp32; `none` if the name has no rounding modifier.
enum class Rounding : int { none, to_even, to_zero, down, up };

Rounding rounding_of(const Name& name) {
  if (name.has("rni")) return Rounding::to_even;
  if (name.has("rzi") || name.has("rz")) return Rounding::to_zero;
  if (name.has("rmi")) return Rounding::down;
  if (name.has("rpi")) return Rounding::up;
  return Rounding::none;
}

template <class T>
T rounded(T x, Rounding rounding) {
  switch (rounding) {
    case Rounding::to_even:
      return std::nearbyint(x);
    case Rounding::to_zero:
      return std::trunc(x);
    case Rounding::down:
      return std::floor(x);
    case Rounding::up:
      return std::ceil(x);
    case Rounding::none:
      break;
  }
  return x;
}

/// The nearest that the type has; 0 for NaN.
template <class D>
D clamped(double whole) {
  using Limits = std::numeric_limits<D>;
  if (std::isnan(whole)) return 0;
  if (whole <= static_cast<double>(Limits::min())) return Limits::min();
  if (whole >= static_cast<double>(Limits::max())) return Limits::max();
  return static_cast<D>(whole);
}

/// `detail` is a Rounding. Either register may be wider than its type: then D fills it with its sign.
template <class D, class S>
Outcome convert(Warp& warp, const Instruction& i, std::uint32_t active) {
  const auto rounding = static_cast<Rounding>(i.detail);
  for_each_lane(active, [&](unsigned l) {
    const std::uint64_t bits = warp.number(i.operands[1], l);
    S from;
    std::memcpy(&from, &bits, sizeof from);
    if constexpr (std::is_floating_point_v<D>) {
      D to = static_cast<D>(from);
      if constexpr (std::is_same_v<S, D>) to = rounded(from, rounding);
      const bool is_away = std::fabs(static_cast<double>(to)) > std::fabs(static_cast<double>(from));
      if (rounding == Rounding::to_zero && is_away) to = std::nextafter(to, D{0});
      std::uint64_t result = 0;
      std::memcpy(&result, &to, sizeof to);
      warp.set_number(i.operands[0], l, result);
    } else if constexpr (std::is_floating_point_v<S>) {
      warp.set_number(i.operands[0], l,
                      static_cast<std::uint64_t>(clamped<D>(rounded(static_cast<double>(from), rounding))));
    } else {
      warp.set_number(i.operands[0], l, static_cast<std::uint64_t>(static_cast<D>(from)));
    }
  });
  return Outcome::next;
}

template <class F>
Execute for_any_number(string_view type, F of) {
  if (type == "s8") return of(std::int8_t{});
  if (type == "u8") return of(std::uint8_t{});
  return for_number(type, of);
}

/// Two numbers of fp32 to a pair of 16 bits: the first operand becomes the high half.
template <class Half>
struct Pair {
  std::uint32_t operator()(float high, float low) const {
    return std::uint32_t{Half::from(low)} | std::uint32_t{Half::from(high)} << 16;
  }
};
template <class Half>
struct PairOfPositive {
  std::uint32_t operator()(float high, float low) const {
    return Pair<Half>{}(high < 0 ? 0.0f : high, low < 0 ? 0.0f : low);
  }
};
template <class Half>
Execute pair(bool clamps_at_zero) {
  if (clamps_at_zero) return &lanewise<PairOfPositive<Half>, std::uint32_t, float, float>;
  return &lanewise<Pair<Half>, std::uint32_t, float, float>;
}

/// The nearest number of tf32; of two equally near ones that which is away from zero.
struct ToTensorFloat32 {
  std::uint32_t operator()(float x) const {
    const std::uint32_t bits = bits_of(x);
    return (std::isfinite(x) ? bits + 0x1000u : bits) & 0xffffe000u;
  }
};

/// To [0, 1]; NaN to 0.
struct Saturated {
  float operator()(float x) const { return std::fmin(std::fmax(x, 0.0f), 1.0f); }
};

struct FromFloat16 {
  float operator()(std::uint16_t bits) const { return Float16::to_float(bits); }
};

}  // namespace

Execute conversions(Instruction& instruction, const Name& name) {
  if (name.base() != "cvt") return nullptr;
  const string_view to = name[name.size() - 2], from = name.type();
  name.may_have({"rn"});
  if (name.has("sat")) return to == "f32" && from == "f32" ? &lanewise<Saturated, float, float> : nullptr;
  if (to == "bf16x2" && from == "f32") return pair<BFloat16>(name.has("relu"));
  if (to == "f16x2" && from == "f32") return pair<Float16>(name.has("relu"));
  if (to == "f32" && from == "f16") return &lanewise<FromFloat16, float, std::uint16_t>;
  if (to == "tf32") return name.has("rna") ? &lanewise<ToTensorFloat32, std::uint32_t, float> : nullptr;
  instruction.detail = static_cast<int>(rounding_of(name));
  return for_any_number(to, [&](auto d) {
    return for_any_number(from, [](auto s) -> Execute { return &convert<decltype(d), decltype(s)>; });
  });
}

}  // namespace gdpa::emulator
