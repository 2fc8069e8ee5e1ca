// Interval arithmetic of masks on a GPU: each enclosure contains the results of C++ arithmetic on numbers within the
// operands, in the types of common/index.cuh: int32 and int64, which wrap, and fp32.
#include "common/bounds.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>

namespace gdpa::test {
namespace {

using bounds::Bounds;
using Int64 = long long;  // the type of index.cuh

/// A result of the arithmetic of C++. Integers wrap.
template <class A, class B, class Of>
auto wrapped(A a, B b, Of of) {
  using Common = decltype(A{} + B{});
  if constexpr (std::is_integral_v<Common>) {
    using Unsigned = std::make_unsigned_t<Common>;
    return static_cast<Common>(of(static_cast<Unsigned>(a), static_cast<Unsigned>(b)));
  } else {
    return of(static_cast<Common>(a), static_cast<Common>(b));
  }
}

template <class A, class B>
auto floor_divided(A a, B b) {
  using Common = decltype(A{} + B{});
  if constexpr (std::is_integral_v<Common>) {
    const Common x = a, y = b, quotient = x / y;
    return x % y != 0 && (x < 0) != (y < 0) ? quotient - 1 : quotient;
  } else {
    return std::floor(static_cast<Common>(a) / static_cast<Common>(b));
  }
}

void expect_contains(const Bounds& enclosure, double result, const char* operation) {
  if (enclosure.is_unknown()) return;
  EXPECT_FALSE(std::isnan(result)) << operation << ": NaN is in no enclosure, got [" << enclosure.low << ", "
                                   << enclosure.high << "]";
  EXPECT_LE(enclosure.low, result) << operation;
  EXPECT_GE(enclosure.high, result) << operation;
}

class RandomNumbers {
 public:
  explicit RandomNumbers(unsigned seed) : engine_(seed) {}

  /// A number of random magnitude: most are small, some are at the end of the type.
  template <class Number>
  Number draw() {
    const int kind = std::uniform_int_distribution<int>(0, 9)(engine_);
    if constexpr (std::is_integral_v<Number>) {
      constexpr auto most = static_cast<Int64>(std::numeric_limits<Number>::max());
      const Int64 extent = kind < 6 ? 200 : kind < 8 ? 70000 : most;
      return static_cast<Number>(std::uniform_int_distribution<Int64>(-extent, extent)(engine_));
    } else {
      if (kind == 9) return std::uniform_int_distribution<int>(0, 1)(engine_) == 0 ? 3e38F : -3e38F;
      const float extent = kind < 4 ? 2.0F : kind < 7 ? 3e4F : 1e12F;
      return std::uniform_real_distribution<float>(-extent, extent)(engine_);
    }
  }

  /// Two numbers and a number between them.
  template <class Number>
  struct Sample {
    Bounds enclosure;
    Number number;
  };
  template <class Number>
  Sample<Number> sample() {
    const Number x = draw<Number>();
    const bool is_point = std::uniform_int_distribution<int>(0, 3)(engine_) == 0;
    const bool is_near = std::uniform_int_distribution<int>(0, 1)(engine_) == 0;
    const auto width = static_cast<Number>(std::uniform_int_distribution<int>(0, 128)(engine_));
    const bool has_room = x < std::numeric_limits<Number>::max() - width;
    const Number y = is_point ? x : is_near && has_room ? static_cast<Number>(x + width) : draw<Number>();
    const Number low = std::min(x, y), high = std::max(x, y);
    Number number;
    if constexpr (std::is_integral_v<Number>) {
      number = std::uniform_int_distribution<Number>(low, high)(engine_);
    } else {
      const float part = std::uniform_real_distribution<float>(0, 1)(engine_);
      number = std::clamp(low * (1 - part) + high * part, low, high);
    }
    return {bounds::hull(bounds::number(low), bounds::number(high)), number};
  }

 private:
  std::mt19937_64 engine_;
};

template <class A, class B>
void check_operations(RandomNumbers& random) {
  using Common = decltype(A{} + B{});
  const auto x = random.sample<A>();
  const auto y = random.sample<B>();
  const A a = x.number;
  const B b = y.number;
  const auto check = [](const Bounds& enclosure, auto result, const char* operation) {
    expect_contains(enclosure, static_cast<double>(result), operation);
  };
  check(bounds::add(x.enclosure, y.enclosure), wrapped(a, b, [](auto p, auto q) { return p + q; }), "add");
  check(bounds::subtract(x.enclosure, y.enclosure), wrapped(a, b, [](auto p, auto q) { return p - q; }), "subtract");
  check(bounds::multiply(x.enclosure, y.enclosure), wrapped(a, b, [](auto p, auto q) { return p * q; }), "multiply");
  if (b != 0) {
    check(bounds::divide(x.enclosure, y.enclosure), static_cast<float>(a) / static_cast<float>(b), "divide");
    check(bounds::floor_divide(x.enclosure, y.enclosure), floor_divided(a, b), "floor_divide");
  }
  const auto p = static_cast<Common>(a), q = static_cast<Common>(b);
  check(bounds::minimum(x.enclosure, y.enclosure), q < p ? q : p, "minimum");
  check(bounds::maximum(x.enclosure, y.enclosure), p < q ? q : p, "maximum");
  check(bounds::less(x.enclosure, y.enclosure), p < q, "less");
  check(bounds::less_equal(x.enclosure, y.enclosure), p <= q, "less_equal");
  check(bounds::equal(x.enclosure, y.enclosure), p == q, "equal");
  check(bounds::select(bounds::less(x.enclosure, y.enclosure), x.enclosure, y.enclosure), p < q ? p : q, "select");
  check(bounds::floor(x.enclosure), std::floor(static_cast<double>(a)), "floor");
  check(bounds::absolute(x.enclosure), a < 0 ? -static_cast<double>(a) : static_cast<double>(a), "absolute");
  check(bounds::sign(x.enclosure), a > 0 ? 1 : a < 0 ? -1 : 0, "sign");
  check(bounds::negate(x.enclosure), -static_cast<double>(a), "negate");
  // The compiler may contract a product and a sum, which rounds once.
  if constexpr (std::is_same_v<Common, float>) {
    const Bounds sum = bounds::add(bounds::multiply(x.enclosure, y.enclosure), x.enclosure);
    check(sum, std::fma(p, q, static_cast<float>(a)), "fused multiply-add");
    check(sum, p * q + static_cast<float>(a), "multiply and add");
  }
}

TEST(Bounds, EveryEnclosureContainsTheResultsOfDeviceArithmetic) {
  RandomNumbers random(1);
  for (int i = 0; i < 20000 && !testing::Test::HasFailure(); ++i) {
    check_operations<int, int>(random);
    check_operations<int, Int64>(random);
    check_operations<int, float>(random);
    check_operations<Int64, Int64>(random);
    check_operations<Int64, float>(random);
    check_operations<float, int>(random);
    check_operations<float, float>(random);
  }
}

TEST(Bounds, ComparisonsOfPositionsAreDecidedOutsideOfTheDiagonal) {
  const Bounds query = bounds::positions(128, 255);
  const auto is = [](const Bounds& value, double low, double high) { return value.low == low && value.high == high; };
  EXPECT_TRUE(is(bounds::less_equal(bounds::positions(0, 127), query), 1, 1));
  EXPECT_TRUE(is(bounds::less_equal(bounds::positions(128, 255), query), 0, 1));
  EXPECT_TRUE(is(bounds::less_equal(bounds::positions(256, 383), query), 0, 0));
  EXPECT_TRUE(is(bounds::less_equal(bounds::subtract(query, bounds::positions(0, 127)), bounds::number(255)), 1, 1));
}

TEST(Bounds, NaNAndWrappedIntegersAreUnknown) {
  const Bounds nan = bounds::number(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(nan.is_unknown());
  EXPECT_TRUE(bounds::maximum(nan, bounds::number(3)).is_unknown());
  const Bounds compared = bounds::less(bounds::number(0), nan);
  EXPECT_EQ(compared.low, 0);
  EXPECT_EQ(compared.high, 1);
  EXPECT_TRUE(bounds::add(bounds::number(0x7fffffff), bounds::number(1)).is_unknown());
  const double infinity = std::numeric_limits<double>::infinity();
  const Bounds infinite{infinity, infinity, bounds::Type::float32};
  EXPECT_TRUE(bounds::subtract(infinite, infinite).is_unknown());
}

}  // namespace
}  // namespace gdpa::test
