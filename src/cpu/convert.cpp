// The conversions of convert.h, compiled once for each instruction set and chosen at run time.
#include "cpu/convert.h"
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/convert.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include <algorithm>
#include <cstddef>
#include <tuple>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace gdpa::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using Half = hn::Rebind<std::uint16_t, D>;

// ---- The 16-bit types, in registers ----

template <class D>
HWY_INLINE hn::Vec<D> decode(D d, hn::Vec<Half<D>> bits, BFloat16) {
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::bfloat16_t, D>(), bits));
}

template <class D>
HWY_INLINE hn::Vec<D> decode(D d, hn::Vec<Half<D>> bits, Float16) {
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
}

template <class D>
HWY_INLINE hn::Vec<Half<D>> encode(D, hn::Vec<D> values, BFloat16) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(du, values);
  const auto high = hn::ShiftRight<16>(bits);
  // Adds half of the last remaining bit, less one, plus this bit: the sum carries exactly if rounding to even rounds
  // up. Highway's own conversion cuts the bits off.
  const auto carry = hn::Add(hn::And(high, hn::Set(du, 1)), hn::Set(du, 0x7FFF));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, carry));
  const auto quiet = hn::Or(high, hn::Set(du, 0x40));  // rounding could carry a NaN into infinity or beyond
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(values));
  return hn::DemoteTo(Half<D>(), hn::BitCast(di, hn::IfThenElse(is_nan, quiet, rounded)));
}

template <class D>
HWY_INLINE hn::Vec<Half<D>> encode(D, hn::Vec<D> values, Float16) {
  return hn::BitCast(Half<D>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), values));
}

// ---- Any element type, between memory and registers of the type that is computed in ----

template <class D, class T>
HWY_INLINE hn::Vec<D> load(D d, const T* source) {
  if constexpr (std::is_same_v<T, ComputeType<T>>) {
    return hn::LoadU(d, source);
  } else {
    return decode(d, hn::LoadU(Half<D>(), &source->bits), T());
  }
}

template <class D, class T>
HWY_INLINE void store(D d, hn::Vec<D> values, T* destination) {
  if constexpr (std::is_same_v<T, ComputeType<T>>) {
    hn::StoreU(values, d, destination);
  } else {
    hn::StoreU(encode(d, values, T()), Half<D>(), &destination->bits);
  }
}

/// Calls body(d, i) for the vectors that cover 0 to count - 1: whole vectors, then at most one vector of each smaller
/// power of two, so that no vector exceeds the range.
template <class D, class Body>
HWY_INLINE void for_each_vector(D d, std::int64_t begin, std::int64_t count, const Body& body) {
  constexpr auto lanes = static_cast<std::int64_t>(hn::MaxLanes(D()));
  std::int64_t i = begin;
  for (; i + lanes <= count; i += lanes) body(d, i);
  if constexpr (lanes > 1) {
    if (i < count) for_each_vector(hn::Half<D>(), i, count, body);
  }
}

/// Calls body(d, i, j) for the vectors that cover a block.
template <class Compute, class Body>
HWY_INLINE void for_each_vector_of_rows(std::int64_t rows, std::int64_t columns, const Body& body) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for_each_vector(hn::ScalableTag<Compute>(), 0, columns, [&](auto d, std::int64_t j) HWY_ATTR { body(d, i, j); });
  }
}

// ---- The functions ----

template <class T, class Compute = ComputeType<T>>
void pack(Tile<const T> source, std::int64_t rows, std::int64_t columns, Compute factor, Tile<Compute> packed) {
  for_each_vector_of_rows<Compute>(rows, columns, [=](auto d, std::int64_t i, std::int64_t j) HWY_ATTR {
    hn::StoreU(hn::Mul(load(d, source.at(i, j).data), hn::Set(d, factor)), d, packed.at(i, j).data);
  });
}

template <class T, class Compute = ComputeType<T>>
void store_rows(Tile<const Compute> source, std::int64_t rows, std::int64_t columns, Compute factor,
                Tile<T> destination) {
  for_each_vector_of_rows<Compute>(rows, columns, [=](auto d, std::int64_t i, std::int64_t j) HWY_ATTR {
    const auto values = hn::LoadU(d, source.at(i, j).data);
    store(d, hn::Mul(values, hn::Set(d, factor)), destination.at(i, j).data);
  });
}

template <class D>
HWY_INLINE hn::Vec<D> load_double(D d, const double* source) {
  return hn::LoadU(d, source);
}
template <class D>
HWY_INLINE hn::Vec<D> load_double(D d, const float* source) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), source));
}

template <class Compute>
void accumulate(Tile<const Compute> source, std::int64_t rows, std::int64_t columns, Tile<double> sum) {
  for_each_vector_of_rows<double>(rows, columns, [=](auto d, std::int64_t i, std::int64_t j) HWY_ATTR {
    double* const to = sum.at(i, j).data;
    hn::StoreU(hn::Add(load_double(d, source.at(i, j).data), hn::LoadU(d, to)), d, to);
  });
}

template <class Compute>
void add(Tile<const Compute> source, std::int64_t rows, std::int64_t columns, Tile<Compute> sum) {
  for_each_vector_of_rows<Compute>(rows, columns, [=](auto d, std::int64_t i, std::int64_t j) HWY_ATTR {
    Compute* const to = sum.at(i, j).data;
    hn::StoreU(hn::Add(hn::LoadU(d, source.at(i, j).data), hn::LoadU(d, to)), d, to);
  });
}

template <class T>
void round(ComputeType<T>* values, std::int64_t count) {
  if constexpr (!std::is_same_v<T, ComputeType<T>>) {
    for_each_vector(hn::ScalableTag<float>(), 0, count, [=](auto d, std::int64_t i) HWY_ATTR {
      hn::StoreU(decode(d, encode(d, hn::LoadU(d, values + i), T()), T()), d, values + i);
    });
  }
}

/// Transposes one square of `side` rows and columns.
template <std::int64_t side, class T, class Compute = ComputeType<T>>
HWY_INLINE void transpose_square(Tile<const T> source, Compute factor, Tile<Compute> packed) {
  const hn::CappedTag<Compute, static_cast<std::size_t>(side)> d;
  const auto scale = hn::Set(d, factor);
  const auto row = [&](std::int64_t i) HWY_ATTR { return hn::Mul(load(d, source.at(i).data), scale); };
  const auto put = [&](std::int64_t j, auto values) HWY_ATTR { hn::StoreU(values, d, packed.at(j).data); };
  if constexpr (side == 1) {
    put(0, row(0));
  } else if constexpr (side == 2) {
    put(0, hn::InterleaveLower(d, row(0), row(1)));
    put(1, hn::InterleaveUpper(d, row(0), row(1)));
  } else {
    static_assert(side == 4);
    const auto low_02 = hn::InterleaveLower(d, row(0), row(2));  // 00 20 01 21
    const auto low_13 = hn::InterleaveLower(d, row(1), row(3));
    const auto high_02 = hn::InterleaveUpper(d, row(0), row(2));  // 02 22 03 23
    const auto high_13 = hn::InterleaveUpper(d, row(1), row(3));
    put(0, hn::InterleaveLower(d, low_02, low_13));
    put(1, hn::InterleaveUpper(d, low_02, low_13));
    put(2, hn::InterleaveLower(d, high_02, high_13));
    put(3, hn::InterleaveUpper(d, high_02, high_13));
  }
}

/// Transposes a block in squares. Smaller squares cover its right and lower edges.
template <std::int64_t side, class T, class Compute = ComputeType<T>>
HWY_INLINE void transpose_block(Tile<const T> source, std::int64_t rows, std::int64_t columns, Compute factor,
                                Tile<Compute> packed) {
  const std::int64_t whole_rows = rows / side * side;
  const std::int64_t whole_columns = columns / side * side;
  for (std::int64_t j = 0; j < whole_columns; j += side) {
    for (std::int64_t i = 0; i < whole_rows; i += side) {
      transpose_square<side>(source.at(i, j), factor, packed.at(j, i));
    }
  }
  if constexpr (side > 1) {
    transpose_block<1>(source.at(0, whole_columns), rows, columns - whole_columns, factor, packed.at(whole_columns));
    transpose_block<1>(source.at(whole_rows), rows - whole_rows, whole_columns, factor, packed.at(0, whole_rows));
  }
}

/// Transposes in tiles of a cache line by a cache line, so that each line is read and written once. This holds for any
/// strides, even if all rows map to the same set of the cache.
template <class T, class Compute = ComputeType<T>>
void pack_transposed(Tile<const T> source, std::int64_t rows, std::int64_t columns, Compute factor,
                     Tile<Compute> packed) {
  constexpr std::int64_t side = 16 / sizeof(Compute);  // of the square that is transposed in registers
  constexpr std::int64_t line = 64 / sizeof(Compute);
  for (std::int64_t i = 0; i < rows; i += line) {
    for (std::int64_t j = 0; j < columns; j += line) {
      transpose_block<side>(source.at(i, j), std::min(line, rows - i), std::min(line, columns - j), factor,
                            packed.at(j, i));
    }
  }
}

template <class T>
constexpr Conversions<T> conversions_of = {
    &pack<T>, &pack_transposed<T>, &store_rows<T>, &accumulate<ComputeType<T>>, &add<ComputeType<T>>, &round<T>};

using AllConversions = std::tuple<Conversions<BFloat16>, Conversions<Float16>, Conversions<float>, Conversions<double>>;

const AllConversions* all_conversions() {
  static constexpr AllConversions all = {conversions_of<BFloat16>, conversions_of<Float16>, conversions_of<float>,
                                         conversions_of<double>};
  return &all;
}

}  // namespace HWY_NAMESPACE
}  // namespace gdpa::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdpa::cpu {

HWY_EXPORT(all_conversions);

template <class T>
const Conversions<T>& conversions() {
  return std::get<Conversions<T>>(*HWY_DYNAMIC_DISPATCH(all_conversions)());
}

template const Conversions<BFloat16>& conversions();
template const Conversions<Float16>& conversions();
template const Conversions<float>& conversions();
template const Conversions<double>& conversions();

}  // namespace gdpa::cpu
#endif  // HWY_ONCE
