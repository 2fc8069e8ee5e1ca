// Adds a tensor to a result of the same shape, in all rows: Q to O, or dO to dQ. Each sum is in fp32 and rounded once.
// The kernel runs after all kernels that write the result.
//
// Launch: grid any number of CTAs.
#pragma once

#include "common/tile.cuh"
#include "portable/arguments.cuh"

namespace gdpa::portable {

template <class Config>
using add_rows_cta = CtaShape<256>;

/// Config: using Element; int columns (of a head); bool aligned.
template <class Config>
__device__ void add_rows(const AddRowsArguments& arguments) {
  using Element = typename Config::Element;
  using Storage = typename Element::Storage;
  constexpr int chunk = chunk_elements<Element>, chunks_of_head = Config::columns / chunk;
  const int chunks_of_row = static_cast<int>(arguments.heads) * chunks_of_head;
  // A CTA has as many rows at once as it has threads for. A remainder of threads is idle.
  const int row_threads = min(chunks_of_row, add_rows_cta<Config>::threads);
  const int rows_at_once = add_rows_cta<Config>::threads / row_threads;
  const int thread = static_cast<int>(threadIdx.x);
  const int first_row = thread / row_threads, first_chunk = thread % row_threads;
  if (first_row >= rows_at_once) return;
  for (int64_t row = int64_t{blockIdx.x} * rows_at_once + first_row; row < arguments.rows;
       row += int64_t{gridDim.x} * rows_at_once) {
    const int64_t b = row / arguments.rows_in_batch, row_of_entry = row - b * arguments.rows_in_batch;
    for (int i = first_chunk; i < chunks_of_row; i += row_threads) {
      const auto at = [&](const Operand& operand) {
        return static_cast<Storage*>(operand.data) + operand.offset(Sequences{}, b, row_of_entry, i / chunks_of_head) +
               i % chunks_of_head * chunk;
      };
      Storage* const to = at(arguments.result);
      const uint4 numbers = load_chunk<Config::aligned>(to), added = load_chunk<Config::aligned>(at(arguments.addend));
      float sums[chunk];
#pragma unroll
      for (int k = 0; k < chunk; ++k) {
        sums[k] = Element::number(reinterpret_cast<const Storage*>(&numbers)[k]) +
                  Element::number(reinterpret_cast<const Storage*>(&added)[k]);
      }
      store_chunk<Config::aligned>(to, round_chunk<Element>(sums));
    }
  }
}

}  // namespace gdpa::portable
