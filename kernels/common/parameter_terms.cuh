// The terms of the gradients of tensors at the scores of a warp. A warp has 16 rows of S and dP in the fragments of the
// tensor cores: lane l has rows l / 4 and l / 4 + 8 at columns 8 n + 2 (l % 4) and the next one. Gradients is the
// struct that src/codegen/gradients.h describes. The warp has some shared memory for sums that many scores share.
#pragma once

#include "common/fragment_columns.cuh"
#include "common/lanes.cuh"
#include "common/parameter_sum.cuh"

namespace gdpa {

/// The shared memory of a warp whose fragments have `columns` columns: the terms of the diagonals of its 16 rows, or a
/// histogram.
///
/// Rows r and r + 8 have the same diagonals eight columns apart, so that a lane adds up their terms in registers. Eight
/// rows remain. Row r has the term of diagonal d at d, where d is 0 for the last row and the first column. The elements
/// of a row that are not of its own diagonals stay zero, so that all rows are added up at every diagonal.
template <int columns>
struct WarpTerms {
  static constexpr int rows = 8, diagonals = columns + 15;
  static constexpr int pitch = (diagonals + 31) / 32 * 32 + 8;  ///< the padding keeps most banks of a fragment apart
  static constexpr int floats = rows * pitch;
  static constexpr int bytes = floats * static_cast<int>(sizeof(float));

  float* memory;

  /// Before the first use. By the warp.
  __device__ __forceinline__ void clear() const {
    for (int i = lane_index(); i < floats; i += 32) memory[i] = 0.0f;
    __syncwarp();
  }

  /// Gives the histogram to the gradients of a head and batch entry, and adds it to the sums. By the warp.
  template <class Gradients>
  __device__ __forceinline__ void begin(Gradients& gradients) const {
    if (Gradients::has_histogram && gradients.elements() <= floats) gradients.histogram = memory;
  }
  template <class Gradients>
  __device__ __forceinline__ void end(Gradients& gradients) const {
    if (!Gradients::has_histogram || gradients.histogram == nullptr) return;
    __syncwarp();
    for (int i = lane_index(); i < static_cast<int>(gradients.elements()); i += 32) {
      if (memory[i] != 0.0f) gradients.flush(i, memory[i]);
      memory[i] = 0.0f;
    }
    __syncwarp();
  }

  /// Stores the terms of this lane's two columns, from column 8 * group on in the upper row and from column
  /// 8 * (group - 1) on in the lower row.
  __device__ __forceinline__ void store(int group, const float (&terms)[2]) const {
    const int row = lane_index() / 4, column = group * 8 + lane_index() % 4 * 2;
    float* const to = memory + row * pitch + column - row + 7;
    to[0] = terms[0];
    to[1] = terms[1];
  }

  /// Adds up the diagonals, and adds them to the sums of a read. By the warp.
  template <class Gradients>
  __device__ __forceinline__ void add_diagonals(Gradients& gradients, int read, int first_query, int first_key) const {
    __syncwarp();
#pragma unroll
    for (int first = 0; first < diagonals; first += 32) {
      const int diagonal = first + lane_index();  // of key - query + 15
      float sum = 0.0f;
#pragma unroll
      for (int row = 0; row < rows; ++row) sum += memory[row * pitch + diagonal];
      gradients.add_diagonal(read, first_query + 15, first_key + min(diagonal, diagonals - 1), sum);
    }
    __syncwarp();
  }
};

/// Adds the gradients of the inputs at the valid scores of the warp. `are_regular`: all scores are valid, and
/// Gradients::has_pairs_at() holds.
template <bool are_regular, class Gradients, int columns, class Mask, class Score, class GradP>
__device__ __forceinline__ void add_terms(Gradients& gradients, const WarpTerms<columns>& warp_terms, const Mask& mask,
                                          int first_query, int first_key, Score score, GradP grad_p) {
  constexpr int diagonals = Gradients::diagonals, groups = columns / 8;
  const int query = first_query + lane_index() / 4, key = first_key + lane_index() % 4 * 2;
  using Valid = typename FragmentOf<groups, Mask::keys_are_range>::Type;
  Valid valid = {};
  if constexpr (!are_regular) valid = mask.template rows<Valid>(query, key);
    // One pass for each diagonal read. The first one also adds the other gradients.
#pragma unroll
  for (int pass = 0; pass < (diagonals > 0 ? diagonals : 1); ++pass) {
    float upper[2] = {};  // the diagonal terms of row l / 4 in the preceding column group
#pragma unroll
    for (int n = 0; n < groups; ++n) {
      float of_row[2][2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float scores[2] = {score(n, half * 2), score(n, half * 2 + 1)};
        const float grads[2] = {grad_p(n, half * 2), grad_p(n, half * 2 + 1)};
        const bool is_valid[2] = {are_regular || valid.holds(half, n * 8), are_regular || valid.holds(half, n * 8 + 1)};
        gradients.template add<are_regular>(pass, scores, grads, is_valid, query + half * 8, key + n * 8, of_row[half]);
      }
      if constexpr (diagonals > 0) {
        const float sums[2] = {upper[0] + of_row[1][0], upper[1] + of_row[1][1]};
        warp_terms.store(n, sums);
        upper[0] = of_row[0][0];
        upper[1] = of_row[0][1];
      }
      // Otherwise the compiler loads the inputs of all scores early, and registers do not suffice.
      if (n % 4 == 3) __syncwarp();
    }
    if constexpr (diagonals > 0) {
      warp_terms.store(groups, upper);
      warp_terms.add_diagonals(gradients, pass, first_query, first_key);
    }
  }
}

/// Adds the gradients of the inputs at the valid scores of the warp. score(n, i) and grad_p(n, i) are the score and dP
/// at column group n, for i = 2 * (whether the row is l / 4 + 8) + (the second column of the lane). `is_full`: the mask
/// keeps all scores whose query exists.
template <class Gradients, int columns, class Mask, class Score, class GradP>
__device__ __forceinline__ void add_terms(Gradients& gradients, const WarpTerms<columns>& warp_terms, const Mask& mask,
                                          bool is_full, int first_query, int first_key, Score score, GradP grad_p) {
  // A query after the sequence does not make a tile of keys partial. Its dP is 0, but f may read NaN there.
  const bool are_regular =
      is_full && first_query + 16 <= gradients.pair.length_q && gradients.has_pairs_at(first_key, columns);
  if (__shfl_sync(0xffffffffu, static_cast<int>(are_regular), 0) != 0) {
    add_terms<true>(gradients, warp_terms, mask, first_query, first_key, score, grad_p);
  } else {
    add_terms<false>(gradients, warp_terms, mask, first_query, first_key, score, grad_p);
  }
}

/// The sums of one thread for each element of a read with a computed index, in shared memory. The sums of all threads
/// for one element are adjacent, so that no lane of a warp waits for another.
template <int threads>
struct ThreadSums {
  static constexpr int bytes_of_element = threads * static_cast<int>(sizeof(float));

  float* memory;  ///< of the CTA

  /// The sum of element 0 of this thread, whose index is below `threads`.
  __device__ __forceinline__ float* of_thread(int thread) const { return memory + thread; }

  /// Before the first use. By the warp of the thread.
  __device__ __forceinline__ void clear(int thread, int elements) const {
    for (int i = 0; i < elements; ++i) of_thread(thread)[i * threads] = 0.0f;
    __syncwarp();
  }

  /// Adds the sums of the warp's threads to the gradient, in one order for each element, and clears them. By the warp.
  template <class Gradients>
  __device__ __forceinline__ void flush(Gradients& gradients, int thread) const {
    __syncwarp();
    const int lane = lane_index(), elements = static_cast<int>(gradients.elements());
    float* const of_warp = of_thread(thread - lane);
    for (int element = lane; element < elements; element += 32) {
      float sum = 0.0f;
#pragma unroll 8
      for (int i = 0; i < 32; ++i) {
        float* const of_lane = of_warp + element * threads + (lane + i) % 32;  // each lane in another bank
        sum += *of_lane;
        *of_lane = 0.0f;
      }
      if (sum != 0.0f) gradients.flush(element, sum);
    }
    __syncwarp();
  }
};

}  // namespace gdpa
