// The arguments of the portable kernels. Plain structs: the host includes this file too.
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

/// A result, and a tensor of the same type and shape that is added to it.
struct AddRowsArguments {
  int64_t rows;           ///< packed rows, or batch * length
  int64_t rows_in_batch;  ///< rows between batch strides: the length where dense, else `rows`
  int64_t heads;
  Operand result;
  Operand addend;
};

/// Rows of a norm. The columns of a head are contiguous.
struct NormRows {
  void* data;  ///< inputs are only read
  int64_t row_stride;
  int64_t head_stride;
  int head_columns = 8;  ///< a multiple of 8
};

/// Of a row: the mean, 0 for rms, and rstd.
struct alignas(8) RowStatistics {
  float mean;
  float rstd;
};

struct NormArguments {
  int64_t rows;
  float eps;
  NormRows x, gate, residual, y;
  const void* weight;  ///< a vector; null: ones
  const void* bias;    ///< a vector; null: zeros
  RowStatistics* statistics;
};

struct NormBackwardArguments {
  int64_t rows;
  NormRows x, gate, grad_y, grad_x, grad_gate;
  const void* weight;
  const void* bias;
  const RowStatistics* statistics;
  float* partials;
};

struct NormReduceArguments {
  const float* partials;
  int64_t partial_count;
  int sums;            ///< of a partial result: of weight, of bias, or of both in this order
  void* gradients[2];  ///< for each of the sums
};

/// The sums of the gradients of tensors, contiguous, and the gradients.
struct RoundParametersArguments {
  void* sums[most_parameters];  ///< the first copy
  ParameterSums copies;
  BoundTensor gradients[most_parameters];  ///< null data: not wanted
};

/// One side of locate_sequences.
struct LocatedSide {
  Sequences sequences;
  int64_t entries;  ///< batch entries, or sequences of keys
  int64_t rows;     ///< of the operand
  int64_t most;     ///< the largest sum: `rows` if sequences must not overlap
  int64_t longest;  ///< the largest length
  Integers places;  ///< of the output: the begins. `sequences` are the queries
  int64_t place_rows;
  int64_t* begins;  ///< one number for each entry
  int64_t* ends;    ///< the same
  int64_t* sums;    ///< entries + 1 numbers; null: the side is left as it is
};

/// The queries and the keys of each batch entry, with a batch map the sequences of keys, each once, and the rows of the
/// output.
struct LocateSequencesArguments {
  LocatedSide sides[4];
};

/// The results of group_entries: KeySequences::entries, of `batch` numbers, and first_entry.
struct GroupEntriesArguments {
  Sequences keys;  ///< with the batch map
  int64_t batch;
  int64_t run;  ///< 0: sort blocks; less than `batch`: merge runs of so many entries; otherwise find the first entries
  const int* runs;  ///< the runs that are merged
  int* entries;     ///< the result of sorting and of merging
  int* first_entry;
};

struct FindOverlapArguments {
  Sequences side;  ///< without a batch map
  int64_t sequences;
  int64_t rows;    ///< of the operand
  unsigned* bits;  ///< one for each row
  int* overlap;    ///< becomes 1 if two sequences have a row in common
};

/// Warps of a CTA of find_overlap, each of which looks at one sequence.
constexpr int find_overlap_sequences = 8;

/// Batch entries and sequences that a CTA of group_entries finds the places of.
constexpr int group_entries_numbers = 32;

/// Batch entries that group_entries sorts at once. The time for a block is quadratic in this number.
constexpr int64_t group_entries_block = 2048;

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
  Integers outputs;  ///< the first rows of the output; null data without output_offsets
  int64_t rows_o;
  const ListedEntry* prepared;  ///< of a prepared mask; otherwise null
};

}  // namespace gdpa::portable
