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
  int64_t first_token_q;  ///< Sequences::first_token()
  int64_t first_token_k;
};

/// The queries and keys of entry b. An entry that is not in the batch has no tokens.
GDPA_HOST_DEVICE inline SequencePair pair_in_batch(const Params& params, int64_t b, int head, int length_q,
                                                   int length_k) {
  const bool exists = b >= 0 && b < params.batch;
  const int64_t first_token_q = exists ? params.queries.first_token(b) : 0;
  const int64_t first_token_k = exists ? params.keys.first_token(b) : 0;
  return {b, head, length_q, length_k, first_token_q, first_token_k};
}

GDPA_HOST_DEVICE inline int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

}  // namespace gdpa
