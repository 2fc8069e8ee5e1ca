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

// All functions below are instantiated for T = BFloat16, Float16, float and double. Strides count elements between
// the starts of consecutive rows; rows and columns may be 0; source and destination must not overlap.

/// packed[i * packed_stride + j] = factor * source[i * source_stride + j], for a block of rows x columns. A factor of
/// 1 is exact. `packed_stride` is at least `columns`.
template <class T>
void pack_rows(const T* source, std::int64_t source_stride, std::int64_t rows, std::int64_t columns,
               ComputeType<T> factor, ComputeType<T>* packed, std::int64_t packed_stride);

/// The transpose: packed[j * packed_stride + i] = factor * source[i * source_stride + j], for a block of `rows` rows
/// of the source. `packed_stride` is at least `rows`; elements of packed rows beyond `rows` are not written.
template <class T>
void pack_transposed(const T* source, std::int64_t source_stride, std::int64_t rows, std::int64_t columns,
                     ComputeType<T> factor, ComputeType<T>* packed, std::int64_t packed_stride);

/// destination[i * destination_stride + j] = factor * source[i * source_stride + j], rounded once to T.
template <class T>
void store_rows(const ComputeType<T>* source, std::int64_t source_stride, std::int64_t rows, std::int64_t columns,
                ComputeType<T> factor, T* destination, std::int64_t destination_stride);

/// sum[i * sum_stride + j] += source[i * source_stride + j], added in double. Instantiated for float and double.
template <class Compute>
void accumulate_rows(const Compute* source, std::int64_t source_stride, std::int64_t rows, std::int64_t columns,
                     double* sum, std::int64_t sum_stride);

/// sum[i * sum_stride + j] += source[i * source_stride + j], added in the compute type. Instantiated for float and
/// double.
template <class Compute>
void add_rows(const Compute* source, std::int64_t source_stride, std::int64_t rows, std::int64_t columns, Compute* sum,
              std::int64_t sum_stride);

/// Rounds values[i] to the precision of T. The result is the same as storing values[i] as T and reading it back. Does
/// nothing for float and double.
template <class T>
void round_through(ComputeType<T>* values, std::int64_t count);

}  // namespace gdpa::cpu
