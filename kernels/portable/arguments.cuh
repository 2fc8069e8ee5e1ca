// What the launcher passes to the portable kernels. Plain structs: the host includes this file too.
#pragma once

#include "common/arguments.cuh"

namespace gdpa::portable {

/// The names that a generated source uses: one for each kernel.
using ForwardArguments = CommonArguments;
using BackwardArguments = CommonArguments;
using BackwardQueryArguments = CommonArguments;
using ParameterGradientsArguments = CommonArguments;
using CheckIndicesArguments = CommonArguments;
using ListTilesArguments = CommonArguments;

struct ReduceArguments {
  const float* partials;  ///< partial results, each (rows, heads, padded columns)
  int64_t split_stride;   ///< floats from one partial result to the next
  int64_t splits;         ///< number of partial results
  int64_t rows;           ///< packed rows, or batch * length, or length where the batch shares the operand
  int64_t rows_in_batch;  ///< rows between batch strides of `output`: its length where dense, else `rows`
  int64_t heads;
  Operand output;
};

/// The sums of the gradients of tensors, contiguous, and the gradients.
struct RoundParametersArguments {
  const void* sums[most_parameters];
  BoundTensor gradients[most_parameters];  ///< null data: not wanted
};

/// One side of locate_sequences.
struct LocatedSide {
  Sequences sequences;
  int64_t rows;     ///< of the operand
  int64_t most;     ///< the largest sum: `rows` if sequences must not overlap
  int64_t* begins;  ///< one number for each batch entry
  int64_t* ends;    ///< the same
  int64_t* sums;    ///< batch + 1 numbers; null: the side is left as it is
};

struct LocateSequencesArguments {
  int64_t batch;
  LocatedSide sides[2];
};

/// A result whose rows belong to the sequences of `side`. Strides are in bytes.
struct ClearGapsArguments {
  Sequences side;
  int64_t batch;
  int64_t rows;
  int64_t heads;
  int64_t row_bytes;  ///< of one head
  unsigned char* result;
  int64_t row_stride;
  int64_t head_stride;
  bool aligned;  ///< the row of every head begins at a multiple of 16 bytes
};

/// Rows that a CTA of clear_gaps looks at together.
constexpr int clear_gaps_rows = 256;

/// Warps of a CTA of list_key_tiles and list_query_tiles, which write one list each.
constexpr int list_warps = 8;

/// Both sides' offsets, how far they may reach, and the lengths that a mask was prepared for.
struct CheckOffsetsArguments {
  Sequences queries;
  Sequences keys;
  bool has_query_gaps;  ///< begins and ends instead of cumulative lengths
  bool has_key_gaps;
  int64_t batch;
  int64_t rows_q;
  int64_t rows_k;
  const ListedEntry* prepared;  ///< of a prepared mask; otherwise null
};

}  // namespace gdpa::portable
