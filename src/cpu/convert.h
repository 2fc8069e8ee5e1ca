// Conversions between the element types of tensors and the type in which the CPU backend computes: packing blocks of
// strided rows, plain and transposed, storing results, and rounding through a narrower type. Vectorised, with run-time
// dispatch over the instruction sets.
//
// Every conversion to a narrower type rounds to nearest, ties to even. NaN stays NaN (its payload may change), infinity
// stays infinity, denormals are exact. A result never depends on where its element lies in the block.
#pragma once

#include <cstdint>
#include <type_traits>

namespace gdpa::cpu {

/// The 16-bit types as bits, without arithmetic.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

/// The type in which elements of type T are computed: float for float, BFloat16 and Float16, double for double.
template <class T>
using ComputeType = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Rows in memory; the stride counts the elements from the start of a row to the start of the next one.
template <class Element>
struct Tile {
  Element* data;
  std::int64_t stride;

  /// The part that begins at this row and column.
  Tile at(std::int64_t row, std::int64_t column = 0) const { return {data + row * stride + column, stride}; }

  operator Tile<const Element>() const { return {data, stride}; }
};

/// The conversions of elements of type T: BFloat16, Float16, float or double. The numbers of rows and columns are those
/// of the source, and may be 0. Source and destination must not overlap.
template <class T>
struct Conversions {
  using Compute = ComputeType<T>;

  /// packed[i][j] = factor * source[i][j]. A factor of 1 is exact.
  void (*pack)(Tile<const T> source, std::int64_t rows, std::int64_t columns, Compute factor, Tile<Compute> packed);

  /// packed[j][i] = factor * source[i][j]. Elements of packed rows beyond `rows` are not written.
  void (*pack_transposed)(Tile<const T> source, std::int64_t rows, std::int64_t columns, Compute factor,
                          Tile<Compute> packed);

  /// destination[i][j] = factor * source[i][j], rounded once to T.
  void (*store)(Tile<const Compute> source, std::int64_t rows, std::int64_t columns, Compute factor,
                Tile<T> destination);

  /// sum[i][j] += source[i][j], added in double, or in the compute type.
  void (*accumulate)(Tile<const Compute> source, std::int64_t rows, std::int64_t columns, Tile<double> sum);
  void (*add)(Tile<const Compute> source, std::int64_t rows, std::int64_t columns, Tile<Compute> sum);

  /// Rounds values[i] to the precision of T. The result is the same as storing values[i] as T and reading it back. Does
  /// nothing for float and double.
  void (*round)(Compute* values, std::int64_t count);
};

/// Returns the conversions for the instruction set of this processor.
template <class T>
const Conversions<T>& conversions();

}  // namespace gdpa::cpu
