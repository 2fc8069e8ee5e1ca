// The sequences of one batch entry in device code, with the 32-bit numbers that kernels need.
#pragma once

#include "definition/params.h"

namespace gdpa {

/// Rows of one sequence. `begin` is the first row in a packed operand, and 0 in other operands.
struct Rows {
  int64_t begin;
  int count;
};

/// The queries and keys of one batch entry and query head: everything that a mask or a bias may depend on.
struct SequencePair {
  int64_t b;
  int head;  ///< of the queries
  int length_q;
  int length_k;
  int64_t first_row_q;  ///< Sequences::first_row()
  int64_t first_row_k;
};

/// The queries and keys of entry b. An entry that is not in the batch has no tokens.
GDPA_HOST_DEVICE inline SequencePair pair_in_batch(const Params& params, int64_t b, int head, int length_q,
                                                   int length_k) {
  const bool exists = b >= 0 && b < params.batch;
  const int64_t first_row_q = exists ? params.queries.first_row(b) : 0;
  const int64_t first_row_k = exists ? params.keys.first_row(b) : 0;
  return {b, head, length_q, length_k, first_row_q, first_row_k};
}

GDPA_HOST_DEVICE inline int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

}  // namespace gdpa
