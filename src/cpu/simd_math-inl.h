// Elementary functions on Highway vectors. float and double have the same formulas with different coefficients. All
// functions follow IEEE 754 for infinities, NaN and denormals. docs/accuracy.md states the largest errors. The file is
// included once for each target, so it has Highway's include guard.
#if defined(GDPA_CPU_SIMD_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef GDPA_CPU_SIMD_MATH_INL_H
#undef GDPA_CPU_SIMD_MATH_INL_H
#else
#define GDPA_CPU_SIMD_MATH_INL_H
#endif

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <type_traits>

#include "cpu/simd_coefficients.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gdpa::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// The coefficients for T, which is float or double.
template <class T>
constexpr const auto& of_type(const auto& of_float, const auto& of_double) {
  if constexpr (std::is_same_v<T, float>) {
    return of_float;
  } else {
    return of_double;
  }
}

/// The constants of a type: sizes of its fields, ranges, and coefficient arrays.
template <class T>
struct Numbers {
  static constexpr bool is_float = std::is_same_v<T, float>;
  using Bits = std::conditional_t<is_float, std::uint32_t, std::uint64_t>;

  static constexpr int mantissa_bits = std::numeric_limits<T>::digits - 1;
  static constexpr int exponent_bias = std::numeric_limits<T>::max_exponent - 1;
  static constexpr T exponent_as_integer = Bits{1} << mantissa_bits;   ///< its low bits hold a small integer
  static constexpr T round_to_integer = exponent_as_integer * T{1.5};  ///< x + this - this is x rounded, for small |x|
  static constexpr T smallest_normal = std::numeric_limits<T>::min();
  static constexpr int denormal_exponent = std::numeric_limits<T>::digits;
  static constexpr T denormal_factor = Bits{1} << denormal_exponent;
  static constexpr Bits root_half_bits = is_float ? 0x3F3504F3U : 0x3FE6A09E667F3BCDU;
  static constexpr Bits one_bits = std::bit_cast<Bits>(T{1});
  static constexpr T exp_low = is_float ? -104 : -746,
                     exp_high = is_float ? 89 : 710;  ///< exp is 0 below, infinite above
  static constexpr T exp2_low = is_float ? -151 : -1076, exp2_high = is_float ? 129 : 1025;
  static constexpr T expm1_low = is_float ? -20 : -40;                ///< expm1 is -1 below
  static constexpr T tanh_high = is_float ? 10 : 20;                  ///< tanh rounds to 1 above
  static constexpr T erf_high = is_float ? 4 : 6;                     ///< erf rounds to 1 above
  static constexpr T reduction_high = is_float ? 12'000 : 1'000'000;  ///< sin and cos reduce exactly below
  static constexpr const auto& exponential = of_type<T>(exponential_32, exponential_64);
  static constexpr const auto& power_of_two = of_type<T>(power_of_two_32, power_of_two_64);
  static constexpr const auto& logarithm = of_type<T>(logarithm_32, logarithm_64);
  static constexpr const auto& sine = of_type<T>(sine_32, sine_64);
  static constexpr const auto& cosine = of_type<T>(cosine_32, cosine_64);
  static constexpr const auto& erf_near_zero = of_type<T>(erf_near_zero_32, erf_near_zero_64);
  static constexpr const auto& erfc_logarithm = of_type<T>(erfc_logarithm_32, erfc_logarithm_64);
  static constexpr const auto& log_2 = of_type<T>(log_2_parts_32, log_2_parts_64);
  static constexpr const auto& half_pi = of_type<T>(half_pi_parts_32, half_pi_parts_64);
};

/// P(x) for coefficients that start with the lowest power, by Horner's rule.
template <class D, class T, std::size_t count>
HWY_INLINE hn::Vec<D> polynomial(D d, hn::Vec<D> x, const T (&coefficients)[count]) {
  hn::Vec<D> sum = hn::Set(d, coefficients[count - 1]);
  for (std::size_t i = count - 1; i-- > 0;) {
    sum = hn::MulAdd(sum, x, hn::Set(d, coefficients[i]));
  }
  return sum;
}

/// Applies `function`, of the standard library, to each lane.
template <class D, class Function>
HWY_INLINE hn::Vec<D> by_lane(D d, hn::Vec<D> a, hn::Vec<D> b, const Function& function) {
  HWY_ALIGN hn::TFromD<D> left[hn::MaxLanes(d)];
  HWY_ALIGN hn::TFromD<D> right[hn::MaxLanes(d)];
  hn::Store(a, d, left);
  hn::Store(b, d, right);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) {
    left[i] = function(left[i], right[i]);
  }
  return hn::Load(d, left);
}

/// Returns 2^n for an integer n. 2^n must be a normal number.
template <class D>
HWY_INLINE hn::Vec<D> power_of_two(D d, hn::Vec<D> n) {
  using N = Numbers<hn::TFromD<D>>;
  const hn::RebindToUnsigned<D> du;
  const auto integer = hn::BitCast(du, hn::Add(n, hn::Set(d, N::round_to_integer)));
  return hn::BitCast(d, hn::Add(hn::ShiftLeft<N::mantissa_bits>(integer), hn::Set(du, N::one_bits)));
}

/// x * 2^n with one rounding, denormal and infinite results included, for |n| up to twice the largest exponent.
template <class D>
HWY_INLINE hn::Vec<D> scale_by_power(D d, hn::Vec<D> x, hn::Vec<D> n) {
#if HWY_TARGET <= HWY_AVX3
  if constexpr (std::is_same_v<hn::TFromD<D>, float>) {
    return hn::Vec<D>{_mm512_scalef_ps(x.raw, n.raw)};
  } else {
    return hn::Vec<D>{_mm512_scalef_pd(x.raw, n.raw)};
  }
#else
  const auto magic = hn::Set(d, Numbers<hn::TFromD<D>>::round_to_integer);
  const auto half = hn::Sub(hn::MulAdd(n, hn::Set(d, 0.5), magic), magic);
  return hn::Mul(hn::Mul(x, power_of_two(d, half)), power_of_two(d, hn::Sub(n, half)));
#endif
}

template <class D>
HWY_INLINE hn::Vec<D> round_to_integer(D d, hn::Vec<D> x) {
  const auto magic = hn::Set(d, Numbers<hn::TFromD<D>>::round_to_integer);
  return hn::Sub(hn::Add(x, magic), magic);
}

/// n and r of x = n log(2) + r, |r| <= log(2) / 2.
template <class D>
struct Reduced {
  hn::Vec<D> n;
  hn::Vec<D> r;
};

template <class D>
HWY_INLINE Reduced<D> reduce_by_log_2(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  const auto n = round_to_integer(d, hn::Mul(x, hn::Set(d, static_cast<T>(1.44269504088896340736))));
  const auto r = hn::NegMulAdd(n, hn::Set(d, Numbers<T>::log_2[0]), x);
  return {n, hn::NegMulAdd(n, hn::Set(d, Numbers<T>::log_2[1]), r)};
}

/// exp(r) - 1 for |r| <= log(2) / 2.
template <class D>
HWY_INLINE hn::Vec<D> expm1_reduced(D d, hn::Vec<D> r) {
  const auto tail = polynomial(d, r, Numbers<hn::TFromD<D>>::exponential);
  return hn::MulAdd(hn::Mul(r, r), tail, r);
}

/// Min and Max return their second operand if one is NaN, as the vector instructions do. Here and below, the bound is
/// the first operand and the bounded value the second, so that NaN propagates.
template <class D>
HWY_INLINE hn::Vec<D> clamp(D d, hn::TFromD<D> low, hn::TFromD<D> high, hn::Vec<D> x) {
  return hn::Max(hn::Set(d, low), hn::Min(hn::Set(d, high), x));
}

template <class D>
HWY_INLINE hn::Vec<D> exp(D d, hn::Vec<D> x) {
  using N = Numbers<hn::TFromD<D>>;
  const auto [n, r] = reduce_by_log_2(d, clamp(d, N::exp_low, N::exp_high, x));
  return scale_by_power(d, hn::Add(hn::Set(d, 1), expm1_reduced(d, r)), n);
}

/// 2^r for |r| <= 1/2.
template <class D>
HWY_INLINE hn::Vec<D> exp2_reduced(D d, hn::Vec<D> r) {
  return hn::MulAdd(r, polynomial(d, r, Numbers<hn::TFromD<D>>::power_of_two), hn::Set(d, 1));
}

template <class D>
HWY_INLINE hn::Vec<D> exp2(D d, hn::Vec<D> x) {
  using N = Numbers<hn::TFromD<D>>;
  x = clamp(d, N::exp2_low, N::exp2_high, x);
  const auto n = round_to_integer(d, x);
  return scale_by_power(d, exp2_reduced(d, hn::Sub(x, n)), n);
}

template <class D>
HWY_INLINE hn::Vec<D> expm1(D d, hn::Vec<D> x) {
  using N = Numbers<hn::TFromD<D>>;
  const auto [n, r] = reduce_by_log_2(d, clamp(d, N::expm1_low, N::exp_high, x));
  // 2^n (1 + p) - 1 as 2 (2^(n-1) p + (2^(n-1) - 1/2)), since 2^n itself overflows before the result does.
  const auto power = power_of_two(d, hn::Sub(n, hn::Set(d, 1)));
  const auto half = hn::MulAdd(power, expm1_reduced(d, r), hn::Sub(power, hn::Set(d, 0.5)));
  // Below the smallest normal number the product above rounds twice; there expm1(x) is x, as it is for -0.
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(d, N::smallest_normal)), x, hn::Add(half, half));
}

/// log(u) + correction / u: the logarithm of u + correction for a correction below the last bit of u. For u positive
/// and finite.
template <class D>
HWY_INLINE hn::Vec<D> log_of_sum(D d, hn::Vec<D> u, hn::Vec<D> correction) {
  using T = hn::TFromD<D>;
  using N = Numbers<T>;
  const hn::RebindToUnsigned<D> du;
  const auto denormal = hn::Lt(u, hn::Set(d, N::smallest_normal));
  const auto normal = hn::IfThenElse(denormal, hn::Mul(u, hn::Set(d, N::denormal_factor)), u);
  // normal = m 2^e with m from sqrt(1/2) to sqrt(2); both by integer arithmetic on the bits, e biased to stay positive.
  const auto shifted = hn::Add(hn::BitCast(du, normal), hn::Set(du, N::one_bits - N::root_half_bits));
  const auto biased = hn::BitCast(
      d, hn::Or(hn::ShiftRight<N::mantissa_bits>(shifted), hn::BitCast(du, hn::Set(d, N::exponent_as_integer))));
  const auto bias =
      hn::IfThenElse(denormal, hn::Set(d, N::exponent_as_integer + N::exponent_bias + N::denormal_exponent),
                     hn::Set(d, N::exponent_as_integer + N::exponent_bias));
  const auto e = hn::Sub(biased, bias);
  const auto mantissa = hn::And(shifted, hn::Set(du, (typename N::Bits{1} << N::mantissa_bits) - 1));
  const auto m = hn::BitCast(d, hn::Add(mantissa, hn::Set(du, N::root_half_bits)));

  // log(m) = f - (h - s (h + z P(z))), f = m - 1, h = f^2 / 2, s = f / (2 + f), z = s^2: only f carries rounding
  // weight.
  const auto f = hn::Sub(m, hn::Set(d, 1));
  const auto h = hn::Mul(hn::Mul(f, f), hn::Set(d, 0.5));
  const auto s = hn::Div(f, hn::Add(f, hn::Set(d, 2)));
  const auto z = hn::Mul(s, s);
  const auto tail = hn::MulAdd(e, hn::Set(d, N::log_2[1]), hn::Div(correction, u));
  const auto low = hn::MulAdd(s, hn::MulAdd(z, polynomial(d, z, N::logarithm), h), tail);
  return hn::MulAdd(e, hn::Set(d, N::log_2[0]), hn::Add(hn::Sub(low, h), f));
}

/// Extends `logarithm`, which is for positive finite u, to every u: -inf at 0, NaN below 0, and u for infinity and NaN.
template <class D>
HWY_INLINE hn::Vec<D> log_at_ends(D d, hn::Vec<D> u, hn::Vec<D> logarithm) {
  using T = hn::TFromD<D>;
  const auto zero = hn::Zero(d);
  const auto infinity = hn::Set(d, std::numeric_limits<T>::infinity());
  const auto not_a_number = hn::Set(d, std::numeric_limits<T>::quiet_NaN());
  const auto not_positive = hn::IfThenElse(hn::Eq(u, zero), hn::Neg(infinity), not_a_number);
  const auto at_ends = hn::IfThenElse(hn::Le(u, zero), not_positive, u);
  return hn::IfThenElse(hn::And(hn::Gt(u, zero), hn::Lt(u, infinity)), logarithm, at_ends);
}

template <class D>
HWY_INLINE hn::Vec<D> log(D d, hn::Vec<D> x) {
  return log_at_ends(d, x, log_of_sum(d, x, hn::Zero(d)));
}

/// x = 2^exponent m with 1 <= m < 2, for a normal x.
template <class D>
struct Binary {
  Binary(D d, hn::Vec<D> x) {
    using N = Numbers<hn::TFromD<D>>;
    const hn::RebindToSigned<D> di;
    const auto bits = hn::BitCast(di, x);
    exponent = hn::ConvertTo(d, hn::Sub(hn::ShiftRight<N::mantissa_bits>(bits), hn::Set(di, N::exponent_bias)));
    const auto fraction = hn::And(bits, hn::Set(di, (hn::TFromD<decltype(di)>{1} << N::mantissa_bits) - 1));
    m = hn::BitCast(d, hn::Or(fraction, hn::BitCast(di, hn::Set(d, 1))));
    is_normal = hn::Ge(x, hn::Set(d, N::smallest_normal));
  }
  hn::Vec<D> exponent;
  hn::Vec<D> m;
  hn::Mask<D> is_normal;
};

/// Exact for powers of two.
template <class D>
HWY_INLINE hn::Vec<D> log2(D d, hn::Vec<D> x) {
  const auto factor = hn::Set(d, std::numbers::log2e_v<hn::TFromD<D>>);
  const Binary<D> parts(d, x);
  const auto normal = hn::Add(parts.exponent, hn::Mul(factor, log(d, parts.m)));
  return log_at_ends(d, x, hn::IfThenElse(parts.is_normal, normal, hn::Mul(factor, log(d, x))));
}

/// The exponent of x. A subnormal x counts as the number below the smallest exponent.
template <class D>
HWY_INLINE hn::Vec<D> floor_log2(D d, hn::Vec<D> x) {
  return log_at_ends(d, x, Binary<D>(d, x).exponent);
}

/// Returns 1 + x as the rounded sum and the error of the rounding.
template <class D>
struct OnePlus {
  OnePlus(D d, hn::Vec<D> x) {
    const auto one = hn::Set(d, 1);
    sum = hn::Add(one, x);
    const auto back = hn::Sub(sum, one);
    rest = hn::Add(hn::Sub(one, hn::Sub(sum, back)), hn::Sub(x, back));
  }
  hn::Vec<D> sum;
  hn::Vec<D> rest;
};

template <class D>
HWY_INLINE hn::Vec<D> log1p(D d, hn::Vec<D> x) {
  const OnePlus<D> u(d, x);
  const auto logarithm = log_at_ends(d, u.sum, log_of_sum(d, u.sum, u.rest));
  return hn::IfThenElse(hn::Eq(u.sum, hn::Set(d, 1)), x, logarithm);
}

template <class D>
HWY_INLINE hn::Vec<D> tanh(D d, hn::Vec<D> x) {
  using N = Numbers<hn::TFromD<D>>;
  const auto magnitude = hn::Min(hn::Set(d, N::tanh_high), hn::Abs(x));
  const auto e = expm1(d, hn::Add(magnitude, magnitude));
  return hn::CopySignToAbs(hn::Div(e, hn::Add(e, hn::Set(d, 2))), x);
}

/// sigmoid(x) and 1 - sigmoid(x), which is sigmoid(-x): both with full relative accuracy.
template <class D>
struct SigmoidPair {
  HWY_INLINE SigmoidPair(D d, hn::Vec<D> x) {
    const auto one = hn::Set(d, 1);
    const auto e = exp(d, hn::Neg(hn::Abs(x)));  // never overflows
    const auto sum = hn::Add(one, e);
    const auto above = hn::Div(one, sum);
    const auto below = hn::Div(e, sum);
    const auto negative = hn::Lt(x, hn::Zero(d));
    sigmoid = hn::IfThenElse(negative, below, above);
    complement = hn::IfThenElse(negative, above, below);
  }
  hn::Vec<D> sigmoid;
  hn::Vec<D> complement;
};

template <class D>
HWY_INLINE hn::Vec<D> sigmoid(D d, hn::Vec<D> x) {
  return SigmoidPair<D>(d, x).sigmoid;
}

template <class D>
HWY_INLINE hn::Vec<D> softplus(D d, hn::Vec<D> x) {
  const auto e = exp(d, hn::Neg(hn::Abs(x)));
  const OnePlus<D> u(d, e);  // from 1 to 2, so the logarithm has no special values. NaN propagates through Max
  return hn::Add(hn::Max(hn::Zero(d), x), log_of_sum(d, u.sum, u.rest));
}

template <class D>
HWY_INLINE hn::Vec<D> erf(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  using N = Numbers<T>;
  const hn::RebindToUnsigned<D> du;
  const auto one = hn::Set(d, 1);
  const auto magnitude = hn::Min(hn::Set(d, N::erf_high), hn::Abs(x));
  const auto near = hn::MulAdd(magnitude, polynomial(d, hn::Mul(magnitude, magnitude), N::erf_near_zero), magnitude);
  // erfc = 2^P; its exponent, far from denormal, is added to the bits of the power of the fraction.
  const auto exponent = polynomial(d, hn::Sub(magnitude, one), N::erfc_logarithm);
  const auto shifted = hn::Add(exponent, hn::Set(d, N::round_to_integer));
  const auto fraction = hn::Sub(exponent, hn::Sub(shifted, hn::Set(d, N::round_to_integer)));
  const auto power = hn::BitCast(du, exp2_reduced(d, fraction));
  const auto complement = hn::BitCast(d, hn::Add(power, hn::ShiftLeft<N::mantissa_bits>(hn::BitCast(du, shifted))));
  return hn::CopySignToAbs(hn::IfThenElse(hn::Lt(magnitude, one), near, hn::Sub(one, complement)), x);
}

/// sin(x) for quarter 0, cos(x) for quarter 1, -sin(x) for quarter 2, and -cos(x) for quarter 3.
template <class D>
HWY_INLINE hn::Vec<D> sine_from_quarter(D d, hn::Vec<D> x, hn::TFromD<D> quarter) {
  using T = hn::TFromD<D>;
  using N = Numbers<T>;
  const hn::RebindToUnsigned<D> du;
  const auto n = round_to_integer(d, hn::Mul(x, hn::Set(d, static_cast<T>(0.63661977236758134308))));
  auto r = x;
  for (std::size_t part = 0; part < 4; ++part) {
    r = hn::NegMulAdd(n, hn::Set(d, N::half_pi[part]), r);
  }
  const auto z = hn::Mul(r, r);
  const auto sine = hn::MulAdd(hn::Mul(r, z), polynomial(d, z, N::sine), r);
  const auto cosine =
      hn::MulAdd(hn::Mul(z, z), polynomial(d, z, N::cosine), hn::NegMulAdd(z, hn::Set(d, 0.5), hn::Set(d, 1)));
  // The low two bits of the quarter choose the function and its sign.
  const auto which = hn::BitCast(du, hn::Add(hn::Add(n, hn::Set(d, quarter)), hn::Set(d, N::round_to_integer)));
  const auto odd = hn::RebindMask(d, hn::TestBit(which, hn::Set(du, 1)));
  const auto sign = hn::And(hn::BitCast(d, hn::ShiftLeft<8 * sizeof(T) - 2>(which)), hn::SignBit(d));
  return hn::Xor(hn::IfThenElse(odd, cosine, sine), sign);
}

template <class D, class Function>
HWY_INLINE hn::Vec<D> periodic(D d, hn::Vec<D> x, hn::TFromD<D> quarter, const Function& standard) {
  const auto small = hn::Le(hn::Abs(x), hn::Set(d, Numbers<hn::TFromD<D>>::reduction_high));
  const auto fast = sine_from_quarter(d, x, quarter);
  if (HWY_LIKELY(hn::AllTrue(d, small))) return fast;
  return hn::IfThenElse(small, fast, by_lane(d, x, x, standard));
}

template <class D>
HWY_INLINE hn::Vec<D> sin(D d, hn::Vec<D> x) {
  return periodic(d, x, 0, [](auto a, auto) HWY_ATTR { return std::sin(a); });
}

template <class D>
HWY_INLINE hn::Vec<D> cos(D d, hn::Vec<D> x) {
  return periodic(d, x, 1, [](auto a, auto) HWY_ATTR { return std::cos(a); });
}

template <class D>
HWY_INLINE hn::Vec<D> power(D d, hn::Vec<D> base, hn::Vec<D> exponent) {
  return by_lane(d, base, exponent, [](auto a, auto b) HWY_ATTR { return std::pow(a, b); });
}

/// The smaller and the larger operand, NaN where either is NaN.
template <class D>
HWY_INLINE hn::Vec<D> minimum(D, hn::Vec<D> a, hn::Vec<D> b) {
  return hn::IfThenElse(hn::IsNaN(a), a, hn::Min(a, b));
}

template <class D>
HWY_INLINE hn::Vec<D> maximum(D, hn::Vec<D> a, hn::Vec<D> b) {
  return hn::IfThenElse(hn::IsNaN(a), a, hn::Max(a, b));
}

/// Returns -1, 0 or 1. A zero has the sign of x, and NaN gives NaN.
template <class D>
HWY_INLINE hn::Vec<D> sign(D d, hn::Vec<D> x) {
  const auto direction = hn::CopySignToAbs(hn::Set(d, 1), x);
  return hn::IfThenElse(hn::Or(hn::Eq(x, hn::Zero(d)), hn::IsNaN(x)), x, direction);
}

}  // namespace HWY_NAMESPACE
}  // namespace gdpa::cpu
HWY_AFTER_NAMESPACE();

#endif  // GDPA_CPU_SIMD_MATH_INL_H
