// The conversions between element types, against scalar references that follow the formats' definitions, on every
// instruction set.
#include "cpu/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "simd_targets.h"

namespace gdpa::cpu {
namespace {

/// The fields of a 16-bit type, from which the references below compute by the definition.
struct Format {
  int mantissa_bits;
  int smallest_exponent;  ///< of a normal number
  double largest;         ///< finite
};

constexpr Format format_of(BFloat16) { return {7, -126, 0x1.FEp127}; }
constexpr Format format_of(Float16) { return {10, -14, 65504.0}; }

/// The value of 16 bits, by the definition of the format.
template <class T>
double value_of(T number) {
  const Format format = format_of(number);
  const int exponent_bits = 15 - format.mantissa_bits;
  const int mantissa = number.bits & ((1 << format.mantissa_bits) - 1);
  const int exponent = (number.bits >> format.mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = (number.bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  const double fraction = std::ldexp(mantissa, -format.mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, format.smallest_exponent);
  return sign * std::ldexp(1 + fraction, exponent - 1 + format.smallest_exponent);
}

/// x rounded to the format, to nearest, ties to even: nearbyint does the rounding in units of the last place.
template <class T>
double rounded(double x) {
  const Format format = format_of(T());
  if (std::isnan(x) || std::isinf(x) || x == 0) return x;
  const int exponent = std::max(std::ilogb(x), format.smallest_exponent);
  const double unit = std::ldexp(1.0, exponent - format.mantissa_bits);
  const double result = std::nearbyint(x / unit) * unit;
  return std::abs(result) > format.largest ? std::copysign(std::numeric_limits<double>::infinity(), x) : result;
}

template <class T>
double value_of_any(T x) {
  if constexpr (std::is_floating_point_v<T>) {
    return x;
  } else {
    return value_of(x);
  }
}

void expect_same(double actual, double expected, double input) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(actual)) << "for " << input;
  } else {
    EXPECT_EQ(actual, expected) << "for " << input;
    EXPECT_EQ(std::signbit(actual), std::signbit(expected)) << "for " << input;
  }
}

/// Every bit pattern of a 16-bit type.
template <class T>
std::vector<T> all_numbers() {
  std::vector<T> numbers(65536);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i].bits = static_cast<std::uint16_t>(i);
  return numbers;
}

/// Returns floats for tests of the rounding to T: every number of T, the middle between neighbours, the adjacent floats
/// of both, and floats with random bits.
template <class T>
std::vector<float> revealing_floats() {
  std::vector<float> floats;
  for (const T number : all_numbers<T>()) {
    const auto exact = static_cast<float>(value_of(number));
    const auto next = static_cast<float>(value_of(T{static_cast<std::uint16_t>(number.bits + 1)}));
    for (const float x : {exact, exact + (next - exact) / 2}) {
      for (const float direction : {-INFINITY, INFINITY}) floats.push_back(std::nextafter(x, direction));
      floats.push_back(x);
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 300000; ++i) floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  return floats;
}

class Convert : public testing::OnEveryTarget {
 protected:
  template <class T>
  void widening_is_exact() {
    const std::vector<T> numbers = all_numbers<T>();
    std::vector<float> wide(numbers.size());
    conversions<T>().pack({numbers.data(), 0}, 1, static_cast<std::int64_t>(numbers.size()), 1, {wide.data(), 0});
    for (std::size_t i = 0; i < numbers.size(); ++i) expect_same(wide[i], value_of(numbers[i]), numbers[i].bits);
  }

  template <class T>
  void narrowing_rounds_to_nearest_even() {
    std::vector<float> floats = revealing_floats<T>();
    const auto count = static_cast<std::int64_t>(floats.size());
    std::vector<T> narrow(floats.size());
    conversions<T>().store({floats.data(), 0}, 1, count, 1, {narrow.data(), 0});
    std::vector<float> through = floats;
    conversions<T>().round(through.data(), count);
    for (std::size_t i = 0; i < floats.size(); ++i) {
      expect_same(value_of(narrow[i]), rounded<T>(floats[i]), floats[i]);
      expect_same(through[i], rounded<T>(floats[i]), floats[i]);
      if (HasFailure()) return;
    }
  }

  /// Blocks of awkward sizes inside guarded memory: right inside, untouched outside.
  template <class T>
  void blocks_are_exact_and_bounded() {
    using Compute = ComputeType<T>;
    const Conversions<T>& convert = conversions<T>();
    std::mt19937 random(3);
    for (const std::int64_t rows : {0, 1, 2, 3, 4, 5, 7, 8, 16, 33}) {
      for (const std::int64_t columns : {0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 24, 31, 40, 65}) {
        const std::int64_t stride = columns + 3;
        std::vector<Compute> numbers(static_cast<std::size_t>(rows * stride + 1));
        for (Compute& x : numbers) x = static_cast<Compute>(static_cast<double>(random() % 2001) - 1000) / 8;
        std::vector<T> source(numbers.size());
        convert.store({numbers.data(), 0}, 1, static_cast<std::int64_t>(numbers.size()), 1, {source.data(), 0});
        const auto at = [&](std::int64_t i, std::int64_t j) {
          return static_cast<Compute>(value_of_any(source[static_cast<std::size_t>(i * stride + j)]));
        };

        const Compute guard = 12345;
        std::vector<Compute> packed(static_cast<std::size_t>(rows * stride + 1), guard);
        convert.pack({source.data(), stride}, rows, columns, 2, {packed.data(), stride});
        const std::int64_t transposed_stride = rows + 2;
        std::vector<Compute> transposed(static_cast<std::size_t>(columns * transposed_stride + 1), guard);
        convert.pack_transposed({source.data(), stride}, rows, columns, 2, {transposed.data(), transposed_stride});
        std::vector<double> sum(packed.size(), 7);
        convert.accumulate({packed.data(), stride}, rows, columns, {sum.data(), stride});
        std::vector<Compute> added(packed.size(), 7);
        convert.add({packed.data(), stride}, rows, columns, {added.data(), stride});
        std::vector<T> stored(source.size(), source.empty() ? T{} : source.back());
        convert.store({packed.data(), stride}, rows, columns, Compute{0.5}, {stored.data(), stride});

        for (std::int64_t i = 0; i < rows; ++i) {
          for (std::int64_t j = 0; j < stride; ++j) {
            const auto k = static_cast<std::size_t>(i * stride + j);
            ASSERT_EQ(packed[k], j < columns ? 2 * at(i, j) : guard) << rows << " x " << columns;
            ASSERT_EQ(sum[k], j < columns ? 7 + 2 * double{at(i, j)} : 7) << rows << " x " << columns;
            ASSERT_EQ(added[k], j < columns ? 7 + 2 * at(i, j) : 7) << rows << " x " << columns;
            ASSERT_EQ(value_of_any(stored[k]), j < columns ? at(i, j) : value_of_any(source.back()));
          }
        }
        for (std::int64_t j = 0; j < columns; ++j) {
          for (std::int64_t i = 0; i < transposed_stride; ++i) {
            const Compute expected = i < rows ? 2 * at(i, j) : guard;
            ASSERT_EQ(transposed[static_cast<std::size_t>(j * transposed_stride + i)], expected)
                << rows << " x " << columns << " at " << i << ", " << j;
          }
        }
        ASSERT_EQ(packed.back(), guard);
        ASSERT_EQ(transposed.back(), guard);
      }
    }
  }
};

TEST_P(Convert, WideningBFloat16IsExact) { widening_is_exact<BFloat16>(); }
TEST_P(Convert, WideningFloat16IsExact) { widening_is_exact<Float16>(); }
TEST_P(Convert, NarrowingToBFloat16RoundsToNearestEven) { narrowing_rounds_to_nearest_even<BFloat16>(); }
TEST_P(Convert, NarrowingToFloat16RoundsToNearestEven) { narrowing_rounds_to_nearest_even<Float16>(); }

TEST_P(Convert, BlocksAreExactAndBounded) {
  blocks_are_exact_and_bounded<BFloat16>();
  blocks_are_exact_and_bounded<Float16>();
  blocks_are_exact_and_bounded<float>();
  blocks_are_exact_and_bounded<double>();
}

TEST_P(Convert, RoundingThroughAWideTypeChangesNothing) {
  float single = 0.1F;
  double twice = 0.1;
  conversions<float>().round(&single, 1);
  conversions<double>().round(&twice, 1);
  EXPECT_EQ(single, 0.1F);
  EXPECT_EQ(twice, 0.1);
}

TEST_P(Convert, AScaledResultIsRoundedOnce) {
  const float third = 1.0F / 3;
  std::vector<float> values(100, third);
  std::vector<BFloat16> stored(values.size());
  conversions<BFloat16>().store({values.data(), 0}, 1, 100, 3.1F, {stored.data(), 0});
  for (const BFloat16 x : stored) EXPECT_EQ(value_of(x), rounded<BFloat16>(third * 3.1F));
}

INSTANTIATE_TEST_SUITE_P(Targets, Convert, testing::all_simd_targets(), testing::target_name);

}  // namespace
}  // namespace gdpa::cpu
