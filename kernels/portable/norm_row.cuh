// One row of a normalisation: how its threads divide the columns, load and store them, and add over the row. The
// kernels norm.cuh and norm_backward.cuh use it.
#pragma once

#include "common/tile.cuh"
#include "portable/arguments.cuh"

namespace gdpa::portable {

constexpr int power_of_two_from(int number) {
  int power = 1;
  while (power < number) power *= 2;
  return power;
}

/// Config: struct with
///     using Element, Weight;        of the rows; of weight and bias
///     int columns;                  a multiple of 8, at most 4096
///     bool aligned;                 every row of every operand begins at a multiple of 16 bytes
template <class Config>
struct NormRow {
  using Element = typename Config::Element;
  using Storage = typename Element::Storage;
  static constexpr int chunk = chunk_elements<Element>;
  static constexpr int chunks = 2;                 ///< of a thread
  static constexpr int elements = chunks * chunk;  ///< of a thread
  static constexpr int row_chunks = Config::columns / chunk;
  static constexpr int threads = power_of_two_from((row_chunks + chunks - 1) / chunks);  ///< of a row
  static constexpr int cta_threads = threads > 128 ? threads : 128;
  static constexpr int rows = cta_threads / threads;  ///< of a CTA at a time
  static constexpr int warps = cta_threads / 32;
  static_assert(Config::columns % 8 == 0 && Config::columns <= 4096, "whole chunks, and at most 512 threads");

  /// The columns of a thread, as they lie in memory.
  struct Chunks {
    uint4 at[chunks];
  };

  /// The row of this thread among the rows of the CTA, and the first column of one of its chunks.
  __device__ static int slot() { return rows == 1 ? 0 : static_cast<int>(threadIdx.x) / threads; }
  __device__ static int column(int i) { return (static_cast<int>(threadIdx.x) % threads + i * threads) * chunk; }
  /// Whether the thread has this chunk. Known at compile time if all threads have all of their chunks.
  __device__ static bool has(int i) { return row_chunks == chunks * threads || column(i) < Config::columns; }

  /// The thread's chunks in the rows of an operand, row after row. A chunk is in one head. Only the constructor divides
  /// by the columns of a head: with a division in each address, NVRTC splits a store of 16 bytes into four.
  class Cursor {
   public:
    /// At `row`. The next row of the thread is `step` rows later.
    __device__ Cursor(const NormRows& rows, int64_t row, int64_t step) : stride(step * rows.row_stride) {
#pragma unroll
      for (int i = 0; i < chunks; ++i) {
        at[i] = static_cast<Storage*>(rows.data) + row * rows.row_stride +
                column(i) / rows.head_columns * rows.head_stride + column(i) % rows.head_columns;
      }
    }

    __device__ void advance() {
#pragma unroll
      for (Storage*& chunk : at) chunk += stride;
    }

    /// Loads the thread's columns of the row, and advances. A row that does not exist is zero.
    __device__ Chunks next(bool exists) {
      Chunks loaded;
#pragma unroll
      for (int i = 0; i < chunks; ++i) {
        loaded.at[i] = exists && has(i) ? load_chunk<Config::aligned>(at[i]) : uint4{0, 0, 0, 0};
      }
      advance();
      return loaded;
    }

    /// Stores one chunk of the row, from its values.
    __device__ void store(int i, const float* values) const {
      if (has(i)) store_chunk<Config::aligned>(at[i], round_chunk<Element>(values));
    }

   private:
    Storage* at[chunks];
    int64_t stride;
  };

  __device__ static void unpack(const Chunks& packed, float (&values)[elements]) {
#pragma unroll
    for (int i = 0; i < chunks; ++i) {
      const unsigned words[4] = {packed.at[i].x, packed.at[i].y, packed.at[i].z, packed.at[i].w};
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        if constexpr (Element::bytes == 2) {
          const float2 pair = gdpa::unpack<Element>(words[word]);
          values[i * chunk + word * 2] = pair.x;
          values[i * chunk + word * 2 + 1] = pair.y;
        } else {
          values[i * chunk + word] = __uint_as_float(words[word]);
        }
      }
    }
  }

  /// The thread's columns of a vector of weights.
  __device__ static void load_weights(const void* weights, float (&values)[elements]) {
    const auto* const from = static_cast<const typename Config::Weight::Storage*>(weights);
#pragma unroll
    for (int i = 0; i < chunks; ++i) {
#pragma unroll
      for (int j = 0; j < chunk; ++j) {
        values[i * chunk + j] = has(i) ? Config::Weight::number(from[column(i) + j]) : 0.0f;
      }
    }
  }

  /// Adds each number over the threads of the row. Every thread gets the same sums. By all threads of the CTA.
  template <int count>
  __device__ static void add_over_row(float (&numbers)[count]) {
#pragma unroll
    for (int step = 1; step < (threads < 32 ? threads : 32); step *= 2) {
#pragma unroll
      for (float& number : numbers) number += __shfl_xor_sync(0xffffffffu, number, step);
    }
    if constexpr (threads > 32) {
      constexpr int row_warps = threads / 32;
      __shared__ float of_warps[count][warps];
      const int warp = static_cast<int>(threadIdx.x) / 32;
      if (lane_index() == 0) {
        for (int i = 0; i < count; ++i) of_warps[i][warp] = numbers[i];
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < count; ++i) {
        float sum = 0.0f;
        for (int of_row = 0; of_row < row_warps; ++of_row) sum += of_warps[i][slot() * row_warps + of_row];
        numbers[i] = sum;
      }
      __syncthreads();  // the next sums overwrite these
    }
  }

  /// The mean of the columns, of each number.
  template <int count>
  __device__ static void mean_over_row(float (&numbers)[count]) {
    add_over_row(numbers);
#pragma unroll
    for (float& number : numbers) number *= 1.0f / Config::columns;
  }
};

}  // namespace gdpa::portable
